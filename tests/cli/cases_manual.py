"""The man page and the completions of shells, beside the help that they come from."""

import os
import re
import shutil
import subprocess

from harness import case, check, skip

COMMANDS = "run grad explain napkin check bench info machine kernels".split()


def written(place):
    """The four files, by name."""
    place.run("--manual", ".")
    texts = {}
    for name in ("attn.1", "attn.bash", "_attn", "attn.fish"):
        with open(place.path(name)) as file:
            texts[name] = file.read()
    return texts


@case
def manual_in_step(place):
    """Each option of each command's help is in the part of each page that is that command's."""
    texts = written(place)
    parts = {
        "attn.1": lambda command: texts["attn.1"].replace("\\-", "-").split(".SS attn %s\n" % command)[1].split(".S")[0],
        "attn.bash": lambda command: texts["attn.bash"].split("\n    %s)\n" % command)[1].split("esac\n        ;;")[0],
        "_attn": lambda command: texts["_attn"].split("\n    %s) _arguments" % command)[1].split(" ;;\n")[0],
        "attn.fish": lambda command: "".join(
            line + " " for line in texts["attn.fish"].splitlines() if "subcommand_from %s'" % command in line
        ),
    }
    ways = {"attn.1": "\\fB--%s\\fR", "attn.bash": "--%s", "_attn": "'--%s", "attn.fish": " -l %s "}
    for command in COMMANDS:
        text = place.run(command, "--help").out
        check(command in texts["attn.1"], command, "is not on the man page")
        options = re.findall(r"^  (?:-\w, )?--([\w-]+)", text, re.M)
        check(len(options) > 1 and options[-1] == "help", command, "has options", options)
        for name, part in parts.items():
            for option in options[:-1]:
                check(ways[name] % option in part(command), name, "lacks --%s of attn %s" % (option, command))
        for line in text.split("print this\n")[1].splitlines():
            check(line in texts["attn.1"].replace("\\-", "-").replace("\\e", "\\").replace("\\&", ""), "attn.1 lacks", line)
    place.refuses(["--manual", "no/such/place"], 1, "no/such/place/attn.1", "No such file")


@case
def manual_is_troff(place):
    written(place)
    if not shutil.which("groff"):
        return skip("no groff here")
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-ww", place.path("attn.1")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    check(done.returncode == 0 and not done.stderr, "groff said", done.stderr.decode())
    check(b"FlashMask" in done.stdout and b".npy" in done.stdout, "groff printed", done.stdout.decode())


@case
def bash_completes(place):
    written(place)
    place.write("q.npy", b"")
    if not shutil.which("bash"):
        return skip("no bash here")
    script = '. ./attn.bash; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _attn; printf "%s\\n" "${COMPREPLY[@]}"'

    def completed(*words):
        done = subprocess.run(
            ["bash", "-c", script, "bash", "attn", *words], cwd=place.directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        check(not done.stderr, words, "bash said", done.stderr.decode())
        return done.stdout.decode().split()

    check(set(COMMANDS) <= set(completed("")), completed(""))
    check(completed("ex") == ["explain"] and completed("help", "ker") == ["kernels"], "commands")
    check(completed("run", "--lens") == ["--lens-q", "--lens-kv"], completed("run", "--lens"))
    check(completed("explain", "--lens") == [], "an option of another command")
    check(completed("run", "--dtype", "") == ["f32", "f16", "bf16"], completed("run", "--dtype", ""))
    check(completed("run", "--device", "=", "cu") == ["cuda"], "--device=")
    check(completed("run", "--q", "q") == ["q.npy"] and completed("run", "-o", "q.") == ["q.npy"], "files")
    check(completed("run", "--chunk", "") == [], "a number has no words")
    check(completed("napkin", "q") == ["q.npy"], "the file of attn napkin")


@case
def other_shells_read(place):
    written(place)
    for shell, name in (("zsh", "_attn"), ("fish", "attn.fish")):
        if not shutil.which(shell):
            skip("no %s here" % shell)
            continue
        done = subprocess.run([shell, "-n", place.path(name)], stderr=subprocess.PIPE, env={**os.environ, "HOME": "/"})
        check(done.returncode == 0 and not done.stderr, shell, "said", done.stderr.decode())
