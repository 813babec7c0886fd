/* The library without which nvrtc.c of this folder compiles nothing, as the real one: libnvrtc-builtins.so.13.0. */
extern const int fake_nvrtc_builtins;
const int fake_nvrtc_builtins = 1;
