"""Pool: which pages of a KV cache belong to which sequence (include/attn_kv.h). It holds page ids alone and never
touches keys or values."""
from __future__ import annotations

import ctypes
import itertools
import secrets
import threading
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

import numpy as np

from . import _c, _options
from ._problem import _converted


class Sequence(NamedTuple):
    """A sequence of a pool. One that was freed is refused for ever."""

    generation: int
    index: int
    pool: int  # which pool's: each has a number that no other of the process has


_numbers = itertools.count(1)


class Level(NamedTuple):
    """What a batch's sequences share at one level, as attention_cascade takes it (Pool.levels)."""

    cu_lens_q: Any  # (count + 1) int32: where each group's rows start, then where the last one's end
    lens_kv: Any  # (count) int32: keys of each group
    page_table: Any  # (count, width) int32: their pages, unused ids -1
    groups: int  # those after the last group have no rows and no keys
    saved: int  # keys that need not be read: of each group its keys, times its sequences less one


class PageCopies(_c.Unpicklable):
    """Pages to be copied, as calls of a pool ask for them: `pairs`, (count, 2) int32, from and to. clear() once the
    copies are under way, before the keys and values of the tokens that were appended."""

    _instead = "pass `pairs`, an array, or make another"

    def __init__(self, room: int):
        self._pairs = np.empty((max(_options.integer("room", room), 0), 2), np.int32)
        self._struct = _c.PageCopies(pairs=self._pairs.ctypes.data, room=len(self._pairs))

    @property
    def pairs(self) -> np.ndarray:
        return self._pairs[:self._struct.count]

    def clear(self) -> None:
        self._struct.count = 0


class Pool(_c.Unpicklable):
    """A pool of `pages` pages of `page_size` slots, a token each, for at most `sequences` sequences of `width` pages
    (PagedAttention, arXiv 2309.06180, section 4).

        prefix  True: the pool keeps tokens, and sequences find common prefixes (match, publish)

    Raises InvalidError for what is out of range and for sequences that are none, PoolFullError where no page or no
    sequence is left: then nothing has changed. Threads may share a pool: its calls wait for each other.

        >>> import libattn
        >>> pool = libattn.Pool(pages=64, page_size=16, sequences=8, width=32)
        >>> seq = pool.create()
        >>> pool.append(seq, count=20)
        >>> pool.tables([seq])[1]
        array([20], dtype=int32)
    """

    _instead = "its pages are those of one cache; fork copies a sequence within the pool, move takes it to another"

    def __init__(self, pages: int, page_size: int, sequences: int, width: int, prefix: bool = False):
        prefix = _options.flag("prefix", prefix)
        fields = {name: _options.integer(name, value) for name, value in (
            ("pages", pages), ("page_size", page_size), ("sequences", sequences), ("width", width))}
        desc = _c.PoolDesc(**fields, flags=_c.POOL_PREFIX * prefix)
        if prefix:
            desc.seed[:] = [secrets.randbits(64), secrets.randbits(64)]
        size = _c.pool_memory(ctypes.byref(desc), ctypes.sizeof(desc))
        if not size:
            raise _c.InvalidError(_c.error().decode())
        self._memory = np.empty(size, np.uint8)
        self._lock, self._number = threading.RLock(), next(_numbers)
        self.width, self.prefix = fields["width"], prefix
        handle = ctypes.c_void_p()
        _c.check(_c.pool_create(ctypes.byref(handle), ctypes.byref(desc), ctypes.sizeof(desc), self._memory.ctypes.data,
                                size))
        self._handle = handle.value

    def _call(self, function: Any, *arguments: Any) -> None:
        with self._lock:
            _c.check(function(self._handle, *arguments))

    def _made(self, seq: _c.Seq) -> Sequence:
        return Sequence(seq.generation, seq.index, self._number)

    def _seq(self, seq: Sequence) -> _c.Seq:
        if not isinstance(seq, Sequence):
            raise TypeError(f"seq is {type(seq).__name__}; it takes a Sequence, as Pool.create makes them")
        if seq.pool != self._number:
            raise _c.InvalidError(f"seq is {seq}, of another pool; it takes this pool's, with pool={self._number}")
        return _c.Seq(seq.generation, seq.index)

    def _needs_prefix(self) -> None:
        if not self.prefix:
            raise _c.InvalidError("the pool has no prefix index: it takes prefix=True")

    def create(self, salt: int = 0) -> Sequence:
        """A new sequence without tokens. salt: 64 bits; sequences find prefixes of their own salt only."""
        made = _c.Seq()
        self._call(_c.seq_create, _options.integer("salt", salt, 64, 0), ctypes.byref(made))
        return self._made(made)

    def match(self, seq: Sequence, tokens: Any) -> int:
        """Begins the sequence, which has no tokens yet, with the pages of the longest published prefix of the tokens;
        its length, 0 if there is none. Pass one token less than the prompt has, if its logits are wanted."""
        array, found = _tokens(tokens), ctypes.c_int64()
        self._needs_prefix()
        self._call(_c.seq_match, self._seq(seq), array.ctypes.data, len(array), ctypes.byref(found))
        return found.value

    def fork(self, seq: Sequence) -> Sequence:
        """A new sequence with the same tokens and pages."""
        made = _c.Seq()
        self._call(_c.seq_fork, self._seq(seq), ctypes.byref(made))
        return self._made(made)

    def append(self, seq: Sequence, tokens: Any = None, *, count: Optional[int] = None,
               copies: Optional[PageCopies] = None) -> None:
        """Adds tokens: int32 with prefix=True, else their count. If the sequence ends within a page that another one
        holds too, it goes on in a copy: one pair is added to copies, which is then needed."""
        if (tokens is None) == (count is None):
            raise _c.InvalidError("append takes either tokens or count")
        array = None if tokens is None else _tokens(tokens)
        number = _options.integer("count", count) if array is None else len(array)
        if self.prefix != (count is None):
            wanted = "tokens" if self.prefix else "count"
            raise _c.InvalidError(f"the pool has prefix={self.prefix}: append takes {wanted}")
        self._call(_c.seq_append, self._seq(seq), None if array is None else array.ctypes.data, number, _list(copies))

    def publish(self, seq: Sequence) -> None:
        """Lets match find the sequence's full pages."""
        self._needs_prefix()
        self._call(_c.seq_publish, self._seq(seq))

    def truncate(self, seq: Sequence, length: int) -> None:
        """Takes back all but the first `length` tokens: rejected drafts."""
        self._call(_c.seq_truncate, self._seq(seq), _options.integer("length", length))

    def drop(self, seq: Sequence, tokens: int) -> None:
        """Gives back the pages all of whose tokens are among the first `tokens`: a window left them behind. In tables
        their ids are -1; the length stays."""
        self._call(_c.seq_drop, self._seq(seq), _options.integer("tokens", tokens))

    def move(self, seq: Sequence, to: "Pool", copies: PageCopies) -> Sequence:
        """Moves the sequence to another pool of the same page size: a new sequence there, a pair in copies for each
        page, and this one is freed."""
        if not isinstance(to, Pool):
            raise TypeError(f"to is {type(to).__name__}; it takes a Pool")
        made = _c.Seq()
        first, second = sorted((self, to), key=id)
        with first._lock, second._lock:
            self._call(_c.seq_move, self._seq(seq), to._handle, ctypes.byref(made), _list(copies))
        return to._made(made)

    def free(self, seq: Sequence) -> None:
        """Gives back all pages of the sequence, and its handle."""
        self._call(_c.seq_free, self._seq(seq))

    def length(self, seq: Sequence) -> int:
        """Tokens of the sequence."""
        with self._lock:
            found = _c.seq_length(self._handle, self._seq(seq))
        if found < 0:
            raise _c.InvalidError(_c.error().decode())
        return found

    def tables(self, seqs: Iterable[Optional[Sequence]], width: Optional[int] = None) -> Tuple[np.ndarray, np.ndarray]:
        """(page tables, lengths) of sequences: (count, width) int32, unused ids -1, and (count) int32. None is a row
        that pads the batch: length 0. width: None: the pool's."""
        listed = [_c.Seq() if seq is None else self._seq(seq) for seq in seqs]
        width = self.width if width is None else _options.integer("width", width)
        if width < 0:
            raise _c.InvalidError(f"width is {width}; it takes 0 or more")
        handles = (_c.Seq * len(listed))(*listed)
        table, lens = np.empty((len(listed), width), np.int32), np.empty(len(listed), np.int32)
        self._call(_c.pool_tables, ctypes.addressof(handles), len(listed), table.ctypes.data, width, lens.ctypes.data)
        return table, lens

    def levels(self, seqs: Iterable[Optional[Sequence]], cu_lens_q: Any, shared: int = 1, least: int = 1,
               width: Optional[int] = None) -> List[Level]:
        """What a batch's sequences have in common, for attention_cascade: `shared` levels, 1 to 8, then each sequence's
        own keys. Sequences that follow one another and begin with the same full pages, `least` keys of them at least,
        are a group; at the next level those of a group that go on with the same pages. So let sequences that share much
        stand together.

            cu_lens_q  (count + 1) int32: where each sequence's rows of this run start, then where the last one's end.
                       Tokens that are rows are nobody's shared keys
            width      columns of the page tables; None: the pool's

        All arrays have room for as many groups as there are sequences, so one plan serves every batch of that many.
        The sum of `saved` over the levels, beside Cascade.info["saved_least"], says whether levels pay.
        """
        listed = [_c.Seq() if seq is None else self._seq(seq) for seq in seqs]
        rows = _converted(np.asarray(cu_lens_q), "cu_lens_q", "int32")
        count, shared = len(listed), _options.integer("shared", shared, 32)
        if rows.shape != (count + 1,):
            raise _c.InvalidError(f"cu_lens_q has shape {rows.shape}; it takes ({count + 1},)")
        if not 1 <= shared <= 8:
            raise _c.InvalidError(f"shared is {shared}; it takes 1 to 8")
        width = self.width if width is None else _options.integer("width", width)
        if width < 0:
            raise _c.InvalidError(f"width is {width}; it takes 0 or more")
        made = [(np.empty(count + 1, np.int32), np.empty(count, np.int32), np.empty((count, width), np.int32))
                for _ in range(shared + 1)]
        levels = (_c.PoolLevel * len(made))(*[_c.PoolLevel(*(x.ctypes.data for x in arrays)) for arrays in made])
        handles = (_c.Seq * count)(*listed)
        self._call(_c.pool_levels, ctypes.addressof(handles), count, rows.ctypes.data, _options.integer("least", least),
                   width, ctypes.addressof(levels), shared)
        return [Level(*arrays, level.groups, level.saved) for arrays, level in zip(made, levels)]

    @property
    def stats(self) -> Dict[str, int]:
        """pages = free + cached + used; shared, indexed, evicted, sequences, tokens, waste: as attn_pool_stats."""
        stats = _c.PoolStats()
        self._call(_c.pool_get_stats, ctypes.byref(stats), ctypes.sizeof(stats))
        return {name: getattr(stats, name) for name, _ in stats._fields_}

    def forget(self) -> None:
        """No sequence finds what was published before: for models whose weights have changed."""
        self._call(_c.pool_forget)


def _list(copies: Optional[PageCopies]) -> Any:
    if copies is not None and not isinstance(copies, PageCopies):
        raise TypeError(f"copies is {type(copies).__name__}; it takes libattn.PageCopies")
    return None if copies is None else ctypes.byref(copies._struct)


def _tokens(tokens: Any) -> np.ndarray:
    array = np.asarray(tokens)
    if array.ndim != 1:
        raise _c.InvalidError(f"tokens has shape {array.shape}; it takes one dimension. Their number alone is count=")
    return _converted(array, "tokens", "int32")
