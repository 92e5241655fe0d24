/* A stand-in for libfdb_c: enough of the C API to see calls, arguments and callbacks cross the
 * border, and to fail in the ways a real one fails before there is a cluster.
 *
 *   -DAPI_VERSION_MAX=710   a library that is too old
 *   -DSILENT                a cluster that never answers
 *   -DREFUSE_SETUP          a network that cannot be set up
 *
 * A read of any key answers, from a thread of the library, "value of " and the key. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef API_VERSION_MAX
#define API_VERSION_MAX 740
#endif

typedef struct future {
    int ready;
    int length;
    uint8_t value[256];
    void (*callback)(struct future *, void *);
    void *argument;
} future;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int running, stopped, live;

static void *allocate(size_t size) {
    pthread_mutex_lock(&lock);
    live++;
    pthread_mutex_unlock(&lock);
    return calloc(1, size);
}

static void release(void *pointer) {
    pthread_mutex_lock(&lock);
    live--;
    pthread_mutex_unlock(&lock);
    free(pointer);
}

/* For the test alone: how many things the library has made that were not destroyed. */
int fake_live(void) { return live; }

int fdb_get_max_api_version(void) { return API_VERSION_MAX; }
int fdb_select_api_version_impl(int runtime, int header) {
    return runtime == header && header <= API_VERSION_MAX ? 0 : 2203;
}
const char *fdb_get_error(int code) { return code ? "fake error" : "Success"; }
int fdb_error_predicate(int predicate, int code) { return predicate == 50001 && code == 1021; }
int fdb_network_set_option(int option, const uint8_t *value, int length) { return 0; }

int fdb_setup_network(void) {
#ifdef REFUSE_SETUP
    return 2009;
#else
    return 0;
#endif
}
int fdb_run_network(void) {
    pthread_mutex_lock(&lock);
    running = 1;
    while (!stopped) pthread_cond_wait(&changed, &lock);
    running = 0;
    pthread_mutex_unlock(&lock);
    return 0;
}
int fdb_stop_network(void) {
    pthread_mutex_lock(&lock);
    stopped = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return 0;
}

/* A real library takes itself down when the process exits, and must not be running by then. */
__attribute__((destructor)) static void unloaded(void) {
    if (running) _exit(42);
}

int fdb_create_database(const char *path, void **out) {
    if (path && strstr(path, "refused")) return 2104;
    *out = allocate(1);
    return 0;
}
void fdb_database_destroy(void *database) { release(database); }
int fdb_database_set_option(void *database, int option, const uint8_t *value, int length) { return 0; }
int fdb_database_create_transaction(void *database, void **out) {
    *out = allocate(1);
    return 0;
}
int fdb_transaction_set_option(void *transaction, int option, const uint8_t *value, int length) { return 0; }
void fdb_transaction_destroy(void *transaction) { release(transaction); }

future *fdb_transaction_get(void *transaction, const uint8_t *key, int length, int snapshot) {
    future *made = allocate(sizeof *made);
    memcpy(made->value, snapshot ? "snapshot " : "value of ", 9);
    memcpy(made->value + 9, key, length);
    made->length = 9 + length;
    return made;
}
int fdb_future_is_ready(future *f) { return __atomic_load_n(&f->ready, __ATOMIC_ACQUIRE); }

#ifndef SILENT
static void *answer(void *argument) {
    future *f = argument;
    struct timespec while_ago = {0, 5000000};
    nanosleep(&while_ago, 0);
    __atomic_store_n(&f->ready, 1, __ATOMIC_RELEASE);
    f->callback(f, f->argument);
    return 0;
}
#endif
int fdb_future_set_callback(future *f, void (*callback)(future *, void *), void *argument) {
    f->callback = callback;
    f->argument = argument;
#ifndef SILENT
    pthread_t thread;
    if (pthread_create(&thread, 0, answer, f)) return 1500;
    pthread_detach(thread);
#endif
    return 0;
}
int fdb_future_get_error(future *f) { return 0; }
int fdb_future_get_value(future *f, int *present, const uint8_t **value, int *length) {
    *present = 1;
    *value = f->value;
    *length = f->length;
    return 0;
}
void fdb_future_destroy(future *f) { release(f); }
