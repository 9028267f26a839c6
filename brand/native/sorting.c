/* Words in order, in the same time on every processor.

   The vectorized sort of numpy takes four times as long on processors that write compressed vectors slowly (AMD's Zen 4,
   numpy/x86-simd-sort#6), and plans are mostly sorts. */

#include "arrays.h"

enum { DIGIT = 8, DIGITS = 64 / DIGIT, VALUES = 1 << DIGIT };

static unsigned digit_of(uint64_t word, int digit) { return (unsigned)(word >> (DIGIT * digit)) & (VALUES - 1); }

/* Sort by one digit after another, from the lowest on; each step keeps the order of the one before. */
static void sort(uint64_t *words, size_t count, uint64_t *spare) {
    size_t found[DIGITS][VALUES] = {{0}};
    uint64_t *from = words, *to = spare;
    for (size_t i = 0; i < count; i++)
        for (int digit = 0; digit < DIGITS; digit++)
            found[digit][digit_of(words[i], digit)]++;
    for (int digit = 0; digit < DIGITS; digit++) {
        size_t *next = found[digit], before = 0;
        if (next[digit_of(from[0], digit)] == count) /* all words have the same */
            continue;
        for (int value = 0; value < VALUES; value++) {
            size_t here = next[value];
            next[value] = before;
            before += here;
        }
        for (size_t i = 0; i < count; i++)
            to[next[digit_of(from[i], digit)]++] = from[i];
        uint64_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != words)
        memcpy(words, from, count * sizeof *words);
}

PyObject *core_sort(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    Py_buffer words;
    PyObject *done = NULL;
    if (!has_arguments(given, 2))
        return NULL;
    Py_ssize_t length = PyLong_AsSsize_t(args[1]);
    if ((length == -1 && PyErr_Occurred()) || PyObject_GetBuffer(args[0], &words, PyBUF_WRITABLE) < 0)
        return NULL;
    const Py_ssize_t count = words.len / (Py_ssize_t)sizeof(uint64_t);
    if (length > 0 && words.len % (Py_ssize_t)sizeof(uint64_t) == 0 && count % length == 0) {
        uint64_t *first = words.buf, *spare = PyMem_Malloc((size_t)length * sizeof *spare);
        if (spare) {
            Py_BEGIN_ALLOW_THREADS
            for (Py_ssize_t i = 0; i < count; i += length)
                sort(first + i, (size_t)length, spare);
            Py_END_ALLOW_THREADS
            PyMem_Free(spare);
            done = Py_NewRef(Py_None);
        } else
            PyErr_NoMemory();
    } else
        PyErr_SetString(PyExc_ValueError, "the words are no rows of this length");
    PyBuffer_Release(&words);
    return done;
}
