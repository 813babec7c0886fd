/* Attention over ranks that are processes of MPI: mpirun -n N parallel_mpi [MODE]. Without a mode: forward and backward
 * against the reference, by every layout and schedule, twice with the same bits. refused: one rank's arguments are
 * wrong, and every rank's call fails. dies, killed: one rank ends in the middle of a run, by itself or by a signal;
 * mpirun must end, and not with 0. */
#include <mpi.h>
#include <signal.h>
#include <unistd.h>

#include "attn_parallel_mpi.h"
#include "parallel_support.h"

static attn_engine *engine;

static void give_up(const char *what, const char *message)
{
    fprintf(stderr, "rank %d of %d: %s: %s\n", (int)engine->rank, (int)engine->ranks, what, message);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Brings every rank's results to every rank: those of each by a broadcast. */
static void collect(const check_problem *problem, const attn_parallel_desc *how)
{
    for (int r = 0; r < engine->ranks; r++) {
        attn_parallel_plan *plan;
        attn_parallel_info info;
        attn_parallel_desc of = *how;
        attn_desc desc = parallel_packed(&problem->desc);
        of.ranks = engine->ranks, of.rank = r;
        if (attn_parallel_plan_create(&plan, &desc, &of, NULL)) give_up("plan", attn_error());
        attn_parallel_plan_get_info(plan, &info);
        attn_parallel_plan_destroy(plan);
        parallel_part part = parallel_part_of(problem, &info);
        attn_shape shape = attn_shape_of(&problem->resolved);
        for (int i = 0; i < part.tensors; i++) {
            const parallel_tensor *t = &part.tensor[i];
            int64_t rows = t->keys ? info.keys : info.rows;
            int64_t bytes = t->extent[0] * rows * t->extent[2] * t->extent[3] * attn_dtype_size(t->dtype);
            if (t->written) MPI_Bcast(t->local, (int)bytes, MPI_BYTE, r, MPI_COMM_WORLD);
        }
        MPI_Bcast(part.args.lse, (int)(shape.q[0] * shape.q[2] * info.rows), MPI_FLOAT, r, MPI_COMM_WORLD);
        part.info.rank = 1; /* the sums are there already */
        parallel_put_back(&part, problem);
        parallel_part_destroy(&part, problem);
    }
}

static void run(const check_problem *problem, const attn_parallel_desc *how, const char *what)
{
    char message[200];
    parallel_part part = parallel_run(problem, how, engine, message);
    if (message[0]) give_up(what, message);
    part.info.rank = 0; /* every rank has the sums */
    parallel_put_back(&part, problem);
    parallel_part_destroy(&part, problem);
    collect(problem, how);
}

static void run_case(const parallel_case *c, attn_direction direction)
{
    check_problem problem;
    attn_desc desc = parallel_desc_of(c, direction);
    check_options options = { .interval = c->interval, .seed = 7 };
    if (check_problem_create(&problem, &desc, &options)) give_up(c->name, attn_error());
    check_reference reference = check_reference_create(&problem);
    for (int n = 0; n < 4; n++) {
        attn_parallel_desc how = { .layout = (attn_layout)(n % 2), .schedule = (attn_schedule)(1 + n / 2) };
        const check_buffer *out = direction ? &problem.gradients[CHECK_GRAD_K] : &problem.o;
        parallel_refresh(&problem);
        run(&problem, &how, c->name);
        check_error error =
            direction ? check_gradients_compare(&problem, &reference) : check_compare(&problem, &reference);
        if (error.message[0]) give_up(c->name, error.message);
        unsigned char *first = check_allocate(out->size + 1);
        memcpy(first, out->data, out->size);
        run(&problem, &how, c->name);
        if (memcmp(first, out->data, out->size) != 0) give_up(c->name, "other bits the second time");
        free(first);
    }
    check_reference_destroy(&reference);
    check_problem_destroy(&problem);
}

/* A run of a causal problem without tensors worth a look; rank `bad` passes no q. */
static attn_status run_plain(int bad)
{
    enum { LEN = 256, ELEMENTS = LEN * 64 };
    static float q[ELEMENTS], k[ELEMENTS], v[ELEMENTS], o[ELEMENTS];
    attn_desc desc = { .dtype = ATTN_F32,
                       .flags = ATTN_CAUSAL,
                       .batch = 1,
                       .heads_q = 2,
                       .len_q = LEN,
                       .len_kv = LEN,
                       .dim_qk = 32,
                       .threads = 1 };
    attn_parallel_plan *plan;
    attn_parallel_info info;
    attn_status status =
        attn_parallel_plan_create(&plan, &desc, &(attn_parallel_desc){ .schedule = ATTN_RING }, engine);
    if (status) return status;
    attn_parallel_plan_get_info(plan, &info);
    void *workspace = check_allocate(info.workspace_bytes);
    attn_args args = { .q = engine->rank == bad ? NULL : q, .k = k, .v = v, .o = o };
    status = attn_parallel_run(plan, &args, workspace, NULL);
    attn_parallel_plan_destroy(plan);
    free(workspace);
    return status;
}

static int killed; /* by this signal */

static int end_at_once(void *context, int32_t to, const void *send, size_t send_bytes, int32_t from, void *receive,
                       size_t receive_bytes, void *stream)
{
    (void)context, (void)to, (void)send, (void)send_bytes, (void)from, (void)receive, (void)receive_bytes, (void)stream;
    raise(killed);
    _exit(3);
}

int main(int count, char **word)
{
    const char *mode = count > 1 ? word[1] : "";
    MPI_Init(&count, &word);
    if (attn_mpi_engine_create(&engine, NULL)) {
        fprintf(stderr, "%s\n", attn_error());
        return 1;
    }
    if (strcmp(mode, "refused") == 0) {
        attn_status status = run_plain(1), expected = engine->rank == 1 ? ATTN_INVALID : ATTN_RANK_FAILED;
        if (status != expected) give_up("refused", attn_status_name(status));
        if (run_plain(-1)) give_up("after a refusal", attn_error());
    } else if (strcmp(mode, "dies") == 0 || strcmp(mode, "killed") == 0) {
        killed = mode[0] == 'k' ? SIGKILL : 0;
        if (engine->rank == 1) engine->exchange = end_at_once;
        run_plain(-1);
    } else {
        for (int i = 0; i < PARALLEL_CASES; i += engine->ranks / 2) /* every case, every second one of four ranks */
            run_case(&parallel_cases[i], ATTN_FORWARD), run_case(&parallel_cases[i], ATTN_BACKWARD);
    }
    if (engine->rank == 0) printf("%d ranks: all well\n", (int)engine->ranks);
    attn_mpi_engine_destroy(engine);
    MPI_Finalize();
    return 0;
}
