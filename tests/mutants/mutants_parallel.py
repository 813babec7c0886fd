"""Mutants of attention over ranks; choice.py says what a mutant is."""

PARALLEL = "src/parallel/"
LAYOUT, RUN, PLAN, GROUP = PARALLEL + "layout.c", PARALLEL + "run.c", PARALLEL + "plan.c", PARALLEL + "group.c"
AGREE, DEVICE, DEVICE_RUN = PARALLEL + "agree.c", PARALLEL + "device.c", PARALLEL + "device_run.c"
PREDICT = PARALLEL + "predict.c"

MUTANTS = [
    (LAYOUT, "2 * (int64_t)plan->how.ranks - 1 - rank : rank;", "2 * (int64_t)plan->how.ranks - 2 - rank : rank;",
     "ranks: two hold one chunk", "parallel"),
    (LAYOUT, "seq.position_q + q.first", "seq.position_q", "ranks: positions count from each chunk", "parallel"),
    (LAYOUT, "t.dropout_key[b] = k.len ? k.first : 0", "t.dropout_key[b] = 0", "ranks: other pairs are dropped than on one", "parallel"),
    (LAYOUT, "t.dropout_head[b] = b * d->heads_q", "t.dropout_head[b] = 0", "ranks: all sequences drop the first one's pairs", "parallel"),
    (LAYOUT, "attn_clamp(row - rows.first, rows.len)", "attn_clamp(row, rows.len)", "ranks: intervals count the whole's rows", "parallel"),
    (LAYOUT, "attn_clamp(args->prefix[b] - k.first, k.len)", "attn_clamp(args->prefix[b], k.len)",
     "ranks: each chunk has a prefix", "parallel"),
    (LAYOUT, "if (k < seen.lo) seen.lo = k;", "seen.lo = 0;", "ranks: a chunk that nobody sees is sent", "parallel"),
    (RUN, "attn_tensor_batch(&r->plan->whole, b) * heads + h;", "b * heads + h;", "ranks: packed LSEs lie where those of a batch do", "parallel"),
    (RUN, "back = attn_rank_sees(plan, r->args, user, me);", "back = attn_rank_sees(plan, r->args, me, user);",
     "ring: gradients are awaited from ranks that have none", "parallel"),
    (RUN, "if (backward && h) memset(grads, 0, plan->gradient.bytes);", "", "ring: gradients of two steps are added up", "parallel"),
    (RUN, "at(r, room->arrived[(h + 1) % 2])", "at(r, room->arrived[h % 2])", "ring: keys arrive where others are read", "parallel"),
    (RUN, "if (r.status && plan->engine.abort) plan->engine.abort(plan->engine.context);", "",
     "ranks: the others wait for one that gave up", "parallel"),
    (RUN, "if (!status && !plan->device) status = attn_args_check", "if (!status) status = attn_args_check",
     "ranks: the host reads slopes that lie on a GPU", "cuda_parallel"),
    (PLAN, "if (!keys) d.flags |= plan->whole.flags & ATTN_SINK, d.strategy = NULL;", "",
     "ranks: no part has the sink", "parallel"),
    (PLAN, "return large || ring < all ? ATTN_RING", "return ring < all ? ATTN_RING", "ranks: memory has no limit", "parallel"),
    (AGREE, "if (all[r].same != all[0].same)", "if (all[r].same != all[r].same)", "ranks: each computes a problem of its own", "parallel"),
    (AGREE, "if (status) return status; /* with", "if (status) return ATTN_OK; /* with", "ranks: what one refuses is run", "parallel"),
    (DEVICE, "even < 2 * least ? even : 2 * least", "even < least ? even : least", "ranks: the last piece has no time to hide others",
     "cuda_parallel"),
    (DEVICE, "int s = i / plan->chunks, c", "int s = 0, c", "ranks: all pieces have the room of one", "cuda_parallel"),
    (DEVICE_RUN, "a.alibi = r->args->alibi + head;", "a.alibi = r->args->alibi;", "ranks: all pieces have the first one's slopes",
     "cuda_parallel"),
    (DEVICE_RUN, "(float *)(void *)(r->room + of[c]) + queries(r, piece->head)", "(float *)(void *)(r->room + of[c]) + queries(r, piece->heads)",
     "ranks: LSEs of two pieces are in one place", "cuda_parallel"),
    (DEVICE_RUN, "follow(r, piece->ready, stream);", "", "ranks: a piece is computed before its keys are there", "cuda_parallel"),
    (DEVICE_RUN, "if (backward && number >= own->slots) follow(r, own->slot[slot].free, stream);", "",
     "ranks: a piece's gradients are written where others are still read", "cuda_parallel"),
    (DEVICE_RUN, "order(r, lane->done, stream, own->transfers);", "", "ranks: gradients leave before they are computed",
     "cuda_parallel"),
    (PREDICT, "(computed > here ? computed : here) + seconds", "computed + seconds", "ranks: the first piece's keys are there at once",
     "cuda_parallel"),
    (GROUP, "if (good && ++group->inside == group->ranks)", "if (good && ++group->inside >= group->ranks - 1)",
     "threads: a rank is not waited for", "parallel"),
]
