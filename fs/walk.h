/* fs/walk.h - the texts that follow a text, in one of four orders.
 *
 * A walk goes through the tree as grep -r, find and the shell do: through a
 * folder in the order it lists or in the order of names, either way, into each
 * folder it meets, and from the end of a folder back up behind it.
 *
 * Layer:   fs.
 * Threads: one, with its own struct listings. Reads folders of SOURCE. */
#ifndef OCR_WALK_H
#define OCR_WALK_H
#include <stdbool.h>
#include <stddef.h>

struct listing;
struct node;
struct ocr_fs;

enum {
    LISTINGS = 8
};

/* Folders that were read a moment ago. Zeroed at first. */
struct listings {
    struct listing *kept[LISTINGS];
    unsigned next;
};

void listings_clear(struct ocr_fs *fs, struct listings *ls);

enum walk_order {
    WALK_LISTED,
    WALK_LISTED_BACK,
    WALK_NAMED,
    WALK_NAMED_BACK,
    WALKS,
};

struct walk {
    struct listing *folder; /* a reference; NULL: at its end */
    long at;                /* the entry it stands at, in its order */
    enum walk_order order;
    unsigned folders; /* entered since it began */
};

/* Stands at `text`. */
void walk_begin(struct ocr_fs *fs, struct listings *ls, struct walk *w,
                struct node *text, enum walk_order order);

/* The next text, with a reference. NULL at the end, and when *budget, which
 * counts entries and weighs folders, is used up: then it can go on later. */
struct node *walk_next(struct ocr_fs *fs, struct listings *ls, struct walk *w,
                       unsigned *budget);

void walk_end(struct ocr_fs *fs, struct walk *w);

#endif
