"""Attention whose rows and keys are spread over the processes of torch.distributed: libattn_parallel with autograd.

On CPUs the group's own backend carries bytes. On GPUs NCCL does, by a communicator that libattn_parallel makes for the
group's ranks: it enqueues, and no Python runs meanwhile.

Every call begins with a small gather on CPUs, in which the ranks tell each other whether their arguments are valid, how
many rows and keys they have, dropout's seed and which plan they have kept. So a rank that raises ends the others'
calls, and a plan is made by all ranks or by none.
"""
from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import weakref
import zlib
from datetime import timedelta
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

from . import _c, _gpu, _options, _parallel, _problem, _run, _tensor
from ._torch_ops import FORWARD_MODE, SECOND, rows_of

_TIMEOUT = 600.0  # seconds, of a backend that has none
_TAG = 0x6174746E  # of messages, so that those of the caller's are not taken for them
_numbers = itertools.count()


def _bytes_at(address: int, count: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    """A tensor of `count` elements over memory that is somebody else's."""
    room = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(room, dtype=dtype)


class Ranks:
    """A process group as libattn_parallel's engine. It holds the group only while a call lasts."""

    def __init__(self, group: Any):
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.globally = dist.get_process_group_ranks(group)  # by rank in the group
        self.number, self.plans = next(_numbers), 0
        self._words: Any = None  # a group for what ranks tell each other, where the caller's has no backend for the CPU
        self._device: Optional[torch.device] = None  # a GPU
        self._engines: Dict[str, _parallel.Engine] = {}  # for it, by transport
        self._group: Any = None
        self._problem: Optional[BaseException] = None
        self._posted: List[Any] = []
        types = dict(_parallel.Engine._fields_)
        functions = {name: types[name](self._guarded(getattr(self, "_" + name)))
                     for name in ("exchange", "wait", "all_gather", "reduce_scatter")}
        self.engine = _parallel.Engine(rank=self.rank, ranks=self.ranks, **functions)

    @contextlib.contextmanager
    def calling(self, group: Any) -> Iterator[None]:
        """While libattn_parallel is called. Where it fails for what a function of the engine raised, that is the
        error's cause."""
        self._group = group
        try:
            yield
        except _c.Error as error:
            if self._problem is None:
                raise
            if not isinstance(self._problem, Exception):
                raise self._problem  # KeyboardInterrupt, say
            raise error from self._problem
        finally:
            self._posted.clear()  # before memory that messages are in is freed
            self._group = self._problem = None

    def gather(self, group: Any, mine: Tensor) -> Tensor:
        """(ranks, ...): every rank's tensor of this shape."""
        everyone = mine.new_empty((self.ranks, *mine.shape))
        dist.all_gather(list(everyone.unbind()), mine, group=group)
        return everyone

    def words(self, group: Any) -> Any:
        """The group by which the ranks tell each other things: on CPUs, so that no GPU is waited for. Made by all of
        them in their first call."""
        if _backend(group, "cpu") is not None:
            return group
        if self._words is None:
            self._words = dist.new_group(self.globally, timeout=timedelta(seconds=_timeout(group)), backend="gloo",
                                         use_local_synchronization=True)
        return self._words

    def check_device(self, device: torch.device) -> None:
        if self._device is not None and device.type == "cuda" and device != self._device:
            raise _c.InvalidError(f"q is on {device}; this rank has computed on {self._device}, and stays there")

    def on_device(self, group: Any, device: torch.device, transport: str) -> _parallel.Engine:
        """The engine for GPUs, made by all ranks in the first call that needs it. device: the current one."""
        self._device = device
        if "nccl" not in self._engines:
            self._engines["nccl"] = _parallel.nccl_engine(self._unique(group), self.rank, self.ranks, _timeout(group))
        if transport not in self._engines:
            self._engines[transport] = _parallel.peer_engine(self._engines["nccl"], _timeout(group))
        return self._engines[transport]

    def _unique(self, group: Any) -> bytes:
        """What rank 0 makes, so that all can join."""
        mine, problem = torch.zeros(1 + _parallel.NCCL_ID_BYTES, dtype=torch.uint8), None
        if self.rank == 0:
            try:
                mine = torch.frombuffer(bytearray(b"\1" + _parallel.nccl_id()), dtype=torch.uint8)
            except _c.Error as error:
                problem = error
        first = self.gather(self.words(group), mine)[0]
        if problem is not None:
            raise problem
        if not first[0]:
            raise _c.RankFailedError(f"rank 0 of {self.ranks} has no NCCL")
        return bytes(first[1:].tolist())

    def _guarded(self, function: Callable[..., None]) -> Callable[..., int]:
        """What C calls: nothing is raised through it."""
        def guarded(_, *arguments):
            try:
                function(*arguments)
                return 0
            except BaseException as problem:
                if self._problem is None:
                    self._problem = problem
                return 1

        return guarded

    def _exchange(self, to, send, send_bytes, source, receive, receive_bytes, _):
        if source >= 0:
            self._posted.append(dist.irecv(_bytes_at(receive, receive_bytes), src=self.globally[source],
                                           group=self._group, tag=_TAG))
        if to >= 0:
            self._posted.append(dist.isend(_bytes_at(send, send_bytes), dst=self.globally[to], group=self._group,
                                           tag=_TAG))

    def _wait(self, _):
        while self._posted:
            self._posted[0].wait()
            del self._posted[0]

    def _all_gather(self, send, receive, count, _):
        if count:
            everyone = _bytes_at(receive, self.ranks * count).unflatten(0, (self.ranks, count))
            dist.all_gather(list(everyone.unbind()), _bytes_at(send, count), group=self._group)

    def _reduce_scatter(self, send, receive, count, _):
        """The exchange, then sums in the order of ranks: a backend's own sum may take another at each call."""
        if count:
            mine = _bytes_at(send, self.ranks * count, torch.float32)
            parts = torch.empty_like(mine)
            dist.all_to_all_single(parts, mine, group=self._group)
            total = _bytes_at(receive, count, torch.float32)
            total.zero_()
            for part in parts.split(count):
                total += part


_ranks_of: "weakref.WeakKeyDictionary[Any, Ranks]" = weakref.WeakKeyDictionary()


def group_of(group: Any) -> Any:
    """The group, None for all processes; raises unless it is one that this process is in."""
    if not dist.is_available() or not dist.is_initialized():
        raise _c.InvalidError("torch.distributed has no process group: torch.distributed.init_process_group makes it")
    if group is None:
        return dist.group.WORLD
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise _c.InvalidError("group is GroupMember.NON_GROUP_MEMBER: this process is not in it")
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"group is {type(group).__name__}; it takes a process group of torch.distributed, or None")
    return group


def ranks_of(group: Any) -> Ranks:
    """The group's engine."""
    found = _ranks_of.get(group)
    if found is None:
        found = _ranks_of[group] = Ranks(group)
    return found


def _backend(group: Any, kind: str) -> Any:
    """The group's backend for tensors there; None: it has none."""
    try:
        return group._get_backend(torch.device(kind))
    except RuntimeError:
        return None


def _timeout(group: Any) -> float:
    """Seconds that the group waits for a rank."""
    options = getattr(_backend(group, "cuda") or _backend(group, "cpu"), "options", None)
    timeout = getattr(options, "_timeout", None)
    return timeout.total_seconds() if timeout is not None else _TIMEOUT


def _check_backend(group: Any, device: torch.device) -> None:
    if _backend(group, device.type) is None:
        raise _c.UnsupportedError(
            f"group has the backend {dist.get_backend(group)!r}, and none for {device}, where q is: "
            'init_process_group("gloo"), ("nccl") or ("cpu:gloo,cuda:nccl") makes one that has')


def one_of(name: str, value: Any, among: Dict[str, int]) -> str:
    if not isinstance(value, str) or value not in among:
        raise _c.InvalidError(f"{name} is {value!r}; it takes {', '.join(map(repr, among))}")
    return value


# ---- a call --------------------------------------------------------------------------------------


class Options(NamedTuple):
    """Those of a call that are no tensors; the seed is None without dropout."""

    static: Tuple[Any, ...]
    layout: str
    schedule: str
    memory: int
    pieces: int
    transport: str
    max_lens: Optional[Tuple[int, int]]
    seed: Optional[Tuple[int, int]]
    is_drawn: bool  # the seed: then rank 0's is everyone's


class _Problem(_problem.Problem):
    """The problem of all ranks, from this rank's tensors and the numbers of rows and keys that they have together."""

    def __init__(self, whole: Tuple[int, int], *arguments: Any):
        self.whole = whole
        super().__init__(*arguments)

    def _shapes(self):
        super()._shapes()
        desc = self.desc
        if self.varlen is None:
            desc.len_q, desc.len_kv = self.whole
        else:
            desc.total_q, desc.total_kv = self.whole


class _Told(NamedTuple):
    """What a rank tells the others when a call begins, as 64-bit integers."""

    failed: int
    plan: int  # the number of the kept plan; 0: there is none
    plans: int  # that it has made
    layout: int
    is_on_gpu: int
    rows: int
    keys: int
    seed: int
    seed_offset: int
    alike: List[int]  # of what must be, by _ALIKE; to say what is not


_ALIKE = ("dtype", "batch", "heads of q", "heads of k", "dim of q", "dim of v",
          *(name for name in _problem.Static._fields if name not in ("threads", "isa", "kernel", "strategy")),
          "schedule", "pieces", "which other tensors are given")
_FAILED = (1, *(0,) * (len(_Told._fields) - 2 + len(_ALIKE)))


def _tell(group: Any, ranks: Ranks, mine: Sequence[int]) -> List[List[int]]:
    """What all ranks tell, first whether they failed; raises where another has."""
    try:
        told = ranks.gather(ranks.words(group), torch.tensor(mine)).tolist()
    except RuntimeError as problem:
        raise _c.RankFailedError("the ranks' first gather failed: one ended, or was not there in time") from problem
    for rank, one in enumerate(told):
        if one[0] and not mine[0]:
            raise _c.RankFailedError(f"rank {rank} of {ranks.ranks} failed before its call began")
    return told


def _told_of(words: Sequence[int]) -> _Told:
    fixed = len(_Told._fields) - 1
    return _Told(*words[:fixed], list(words[fixed:]))


@functools.lru_cache(maxsize=64)
def _alike(static: Tuple[Any, ...], how: Tuple[Any, ...], dtype: torch.dtype, shapes: Tuple[Any, ...],
           arrays: Tuple[str, ...]) -> List[int]:
    """A number for each of _ALIKE."""
    options = _problem.Static(*static)._asdict()
    q, k, v = shapes
    values = (str(dtype), q[:-3], q[-2], k[-2], q[-1], v[-1], *(options[name] for name in _ALIKE if name in options), *how,
              arrays)
    return [zlib.crc32(repr(value).encode()) for value in values]


@contextlib.contextmanager
def _saying_what(told: List[_Told], is_drawn: bool) -> Iterator[None]:
    """Where C finds that problems are not alike, which of their parts are not. is_drawn: seeds need not be."""
    try:
        yield
    except _c.RankFailedError as problem:
        if "different problems" not in str(problem):
            raise
        names = [name for name, *words in zip(_ALIKE, *(one.alike for one in told)) if len(set(words)) > 1]
        if len({(one.seed, one.seed_offset) for one in told}) > 1 and not is_drawn:
            names.append("seed")
        raise _c.RankFailedError(f"{problem}: they differ in {', '.join(names or ['their lengths'])}") from None


@contextlib.contextmanager
def _telling(group: Any, ranks: Ranks, failed: Sequence[int]) -> Iterator[None]:
    """What raises within is told in these words, as the others are waiting for what this rank tells."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(_c.Error):
            _tell(group, ranks, failed)
        raise


def _whole(ranks: Ranks, told: List[_Told], layout: str) -> Tuple[int, int]:
    """Rows and keys of all ranks; raises, on every rank, unless each has those of the layout."""
    for rank, one in enumerate(told):
        if one.layout != told[0].layout:
            raise _c.RankFailedError(f"ranks 0 and {rank} of {ranks.ranks} have different layouts")
        if one.is_on_gpu != told[0].is_on_gpu:
            raise _c.RankFailedError(f"of ranks 0 and {rank} of {ranks.ranks} one has its tensors on a GPU alone")
    totals = sum(one.rows for one in told), sum(one.keys for one in told)
    for name, total, counts in zip("qk", totals, ([one.rows for one in told], [one.keys for one in told])):
        for rank, held in enumerate(_parallel.parts(total, ranks.ranks, layout)):
            wanted = sum(end - begin for begin, end in held)
            if counts[rank] != wanted:
                raise _c.InvalidError(f"{name} has {counts[rank]} rows on rank {rank} of {ranks.ranks}; of {total} in "
                                      f"all it takes {wanted} in layout {layout!r}, as context_parallel_shard gives")
    return totals


def _or_none(make: Callable[[], Any], call: Callable[[Any], Any]) -> Any:
    """call() of what make() gives. Where that raises, call(None): C refuses it and so tells the other ranks."""
    try:
        made = make()
    except BaseException:
        with contextlib.suppress(_c.Error):
            call(None)
        raise
    return call(made)


def _run_ranks(group: Any, direction: int, tensors: Dict[str, Tensor], arrays: Dict[str, Any], options: Options,
               want: Tuple[str, ...]) -> Tuple[Dict[str, Tensor], Optional[Tuple[int, int]]]:
    """The wanted results by name, and the seed. tensors: q, k, v and (backward) o, lse, grad_o, grad_lse."""
    return _run.placed(tensors["q"], tensors["q"], None, [], lambda device, context, stream: _run_placed(
        group, direction, tensors, arrays, options, want, device, context, stream))


def _run_placed(group, direction, tensors, arrays, options, want, device, context, stream):
    ranks, q, seed = ranks_of(group), tensors["q"], options.seed
    key = (ranks.number, direction, options[:-2], context, *[_tensor.signature(x) for x in tensors.values()],
           *[(name, _tensor.signature(x)) for name, x in arrays.items()])
    number, prepared = _run.kept_already(key) or (0, None)
    alike = _alike(options.static, (options.schedule, options.pieces), q.dtype,
                   tuple(tuple(tensors[name].shape) for name in "qkv"), tuple(sorted(arrays)))
    mine = (0, number, ranks.plans, _parallel.LAYOUTS[options.layout], device is not None, q.shape[-3],
            tensors["k"].shape[-3], *(seed or (0, 0)), *alike)
    told = [_told_of(one) for one in _tell(group, ranks, mine)]
    whole = _whole(ranks, told, options.layout)
    if options.is_drawn:
        seed = told[0].seed, told[0].seed_offset
    how = _parallel.How(layout=_parallel.LAYOUTS[options.layout], schedule=_parallel.SCHEDULES[options.schedule],
                        memory=options.memory, pieces=options.pieces)
    if not number or any(one.plan != number for one in told):  # not made by all of them in one call
        ranks.plans = max(one.plans for one in told) + 1
        engine = ranks.engine
        if device is not None:
            _gpu.find_nvrtc()
            engine = ranks.on_device(group, q.device, options.transport)
        with _saying_what(told, options.is_drawn), ranks.calling(group):
            prepared = _or_none(
                lambda: _Problem(whole, direction, _run.layouts(tensors), _problem.Static(*options.static),
                                 _run.layouts(arrays), options.max_lens, None, {}),
                lambda problem: (_parallel.refuse(how, engine) if problem is None else
                                 problem.prepare(lambda desc: _parallel.Plan(desc, how, engine))))
        _run.keep(key, (ranks.plans, prepared))
    results: Dict[str, Tensor] = {}

    def arguments():
        args = _c.Args()
        partly = options.max_lens is not None or "lens_q" in arrays or "lens_kv" in arrays
        for name in want:
            dtype = prepared.floats if name in ("lse", "grad_alibi", "grad_sink") else prepared.dtype
            results[name] = _tensor.empty(q, prepared.shapes[name], dtype, name, partly)[0]
        for name, tensor in (*tensors.items(), *arrays.items(), *results.items()):
            setattr(args, name, _problem.address_of(tensor, name))
        if seed is not None:
            args.seed, args.seed_offset = seed[0] % (1 << 64), seed[1] % (1 << 32)
        return args, _run.workspace(q, device, prepared.workspace)

    def run(made):
        args, (_, place) = made or (None, (None, None))
        _c.check(_parallel.library().run(prepared.handle, args, _c.ARGS_SIZE, place, stream),
                 options.max_lens is not None)

    with _saying_what(told, options.is_drawn), ranks.calling(group):
        _or_none(arguments, run)
    return results, seed


# ---- autograd ------------------------------------------------------------------------------------


class Call(NamedTuple):
    """A call but for the tensors that have gradients."""

    group: Any
    options: Options
    arrays: Dict[str, Any]  # without alibi and sink


def _arrays(call: Call, q: Tensor, alibi: Optional[Tensor], sink: Optional[Tensor]) -> Dict[str, Any]:
    """All arrays, as C takes them."""
    given = {**call.arrays, "alibi": alibi, "sink": sink}
    return {name: _problem.as_table(array, name, _problem.table_dtype(name, ""), _tensor.device_of(q))
            for name, array in given.items() if array is not None}


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call, q, k, v, alibi, sink):
        results, seed = _run_ranks(call.group, _c.FORWARD, {"q": q, "k": k, "v": v}, _arrays(call, q, alibi, sink),
                                   call.options, ("o", "lse"))
        ctx.call = call._replace(options=call.options._replace(seed=seed, is_drawn=False))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, results["o"], results["lse"], alibi, sink)
        return results["o"], results["lse"]

    @staticmethod
    def backward(ctx, grad_o, grad_lse):
        saved = ctx.saved_tensors
        if grad_o is None:
            grad_o = torch.zeros_like(saved[3])
        return (None, *_Gradients.apply(ctx.call, ctx.needs_input_grad[4:], grad_o, grad_lse, *saved))

    @staticmethod
    def jvp(ctx, *tangents):
        raise _c.UnsupportedError(FORWARD_MODE)


class _Gradients(torch.autograd.Function):
    """Gradients of q, k, v, alibi and sink. All ranks compute those of q, k and v, whichever they need: the call is one
    of all ranks."""

    @staticmethod
    def forward(ctx, call, wanted, grad_o, grad_lse, q, k, v, o, lse, alibi, sink):
        tensors = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "grad_o": rows_of(grad_o)}
        if grad_lse is not None:
            tensors["grad_lse"] = grad_lse.contiguous()
        more = tuple(name for name, is_wanted in zip(("grad_alibi", "grad_sink"), wanted) if is_wanted)
        results, _ = _run_ranks(call.group, _c.BACKWARD, tensors, _arrays(call, q, alibi, sink), call.options,
                                ("grad_q", "grad_k", "grad_v", *more))
        ranks = dist.get_world_size(call.group)
        shares = {name: results[name] / ranks for name in more}  # C's are the sums over all ranks
        return (*(results[name].to(q.dtype) for name in ("grad_q", "grad_k", "grad_v")),
                shares.get("grad_alibi"), shares.get("grad_sink"))

    @staticmethod
    def backward(ctx, *grads):
        raise _c.UnsupportedError(SECOND)


def attention(group: Any, checked: Callable[[], Tuple[Options, Dict[str, Any], Tuple[Any, ...]]]
              ) -> Tuple[Tensor, Tensor]:
    """(o, lse). checked: gives the options, arrays, and q, k, v, alibi and sink; where it raises, so do all ranks."""
    group = group_of(group)
    if _backend(group, "cpu") is None:
        _check_backend(group, torch.device("cuda"))
    ranks = ranks_of(group)
    with _telling(group, ranks, _FAILED):
        options, arrays, tensors = checked()
        _check_backend(group, tensors[0].device)
        ranks.check_device(tensors[0].device)
        _parallel.library()
    return _Attention.apply(Call(group, options, arrays), *tensors)


# ---- sharding ------------------------------------------------------------------------------------


def check_rows(tensor, layout, dim) -> None:
    one_of("layout", layout, _parallel.LAYOUTS)
    _options.check("dim", dim, _options.INTEGER)
    if not isinstance(tensor, Tensor):
        raise TypeError(f"tensor is {type(tensor).__name__}; it takes a torch tensor")
    if not -tensor.dim() <= dim < tensor.dim():
        raise _c.InvalidError(f"dim is {dim}; tensor has {tensor.dim()} dimensions")


def context_parallel_shard(tensor: Tensor, group: Any = None, layout: str = "zigzag", dim: int = 1) -> Tensor:
    """This rank's rows of a tensor that every rank has whole, (batch, rows, ...); dim: where the rows are, 0 in packed
    tensors. Autograd goes through it; nothing is sent. context_parallel_unshard is its inverse."""
    group = group_of(group)
    check_rows(tensor, layout, dim)
    held = _parallel.parts(tensor.shape[dim], dist.get_world_size(group), layout)
    pieces = [tensor.narrow(dim, begin, end - begin) for begin, end in held[dist.get_rank(group)]]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)


def counts_of_rows(ranks: Ranks, group: Any, tensor, layout, dim) -> List[int]:
    """How many rows each rank holds, once all have told that their arguments are right, and alike but for that."""
    with _telling(group, ranks, (1, 0, 0)):
        check_rows(tensor, layout, dim)
        if tensor.requires_grad:
            raise _c.InvalidError("tensor requires grad, and what is gathered escapes autograd: pass tensor.detach()")
    others = list(tensor.shape)
    rows = others.pop(dim)
    alike = zlib.crc32(repr((tensor.dtype, others, dim % tensor.dim(), layout)).encode())
    told = _tell(group, ranks, (0, rows, alike))
    if len({one for _, _, one in told}) > 1:
        raise _c.InvalidError("tensor's dtype, or its extents but for rows, layout or dim differ between ranks")
    return [count for _, count, _ in told]


def context_parallel_unshard(tensor: Tensor, group: Any = None, layout: str = "zigzag", dim: int = 1) -> Tensor:
    """The whole, on every rank, of the ranks' rows. It has no autograd: a tensor that requires grad is refused. Where a
    rank raises, the others raise RankFailedError."""
    group = group_of(group)
    ranks = ranks_of(group)
    counts = counts_of_rows(ranks, group, tensor, layout, dim)
    held = _parallel.parts(sum(counts), ranks.ranks, layout)
    wanted = [sum(end - begin for begin, end in parts) for parts in held]
    if counts != wanted:
        raise _c.InvalidError(f"tensor has {counts} rows on the ranks; in layout {layout!r} it takes {wanted}")
    rows = tensor.movedim(dim, 0)
    most = rows.new_zeros((max(counts), *rows.shape[1:]))  # all ranks send the same size
    most[:rows.shape[0]] = rows
    pieces = []
    for everyone, parts in zip(ranks.gather(group, most), held):
        at = 0
        for begin, end in parts:
            pieces.append((begin, everyone[at:at + end - begin]))
            at += end - begin
    pieces.sort(key=lambda piece: piece[0])
    return torch.cat([piece for _, piece in pieces]).movedim(0, dim)


def context_parallel_positions(rows: int, group: Any = None, layout: str = "zigzag",
                               device: Optional[torch.device] = None) -> Tensor:
    """Which of `rows` rows this rank holds, int64: positions for a rotary embedding, say."""
    return context_parallel_shard(torch.arange(_options.integer("rows", rows, 31, 0), device=device), group, layout, 0)
