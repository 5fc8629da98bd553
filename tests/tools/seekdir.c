/* seekdir FOLDER: reads it once, then goes to remembered positions, last to
 * first, and checks that the same name stands there. Prints the count. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct place {
    long at;
    char name[256];
};

static struct place *read_all(DIR *dir, size_t *count)
{
    struct place *all = NULL;
    size_t room = 0;
    struct dirent *entry = NULL;
    long at = telldir(dir);

    for (*count = 0; (entry = readdir(dir)); at = telldir(dir)) {
        if (*count == room) {
            struct place *more = NULL;

            room = room ? 2 * room : 1024;
            more = realloc(all, room * sizeof *all);
            if (!more) {
                free(all);
                return NULL;
            }
            all = more;
        }
        all[*count].at = at;
        snprintf(all[*count].name, sizeof all->name, "%s", entry->d_name);
        ++*count;
    }
    return all;
}

static int check(DIR *dir, const struct place *place)
{
    const struct dirent *entry = NULL;

    seekdir(dir, place->at);
    entry = readdir(dir);
    if (entry && strcmp(entry->d_name, place->name) == 0)
        return 0;
    fprintf(stderr, "at %ld: %s, was %s\n", place->at,
            entry ? entry->d_name : "the end", place->name);
    return 1;
}

int main(int argc, char **argv)
{
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    struct place *all = NULL;
    size_t count = 0;
    int bad = 0;

    if (!dir || !(all = read_all(dir, &count))) {
        perror(argc == 2 ? argv[1] : "usage: seekdir FOLDER");
        return 2;
    }
    for (size_t i = count; i-- > 0;)
        bad |= check(dir, &all[i]);
    for (size_t i = 0; i < count; i += 97)
        bad |= check(dir, &all[i]);
    free(all);
    closedir(dir);
    if (!bad)
        printf("%zu entries\n", count);
    return bad;
}
