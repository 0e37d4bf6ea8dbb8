/* host_memory.c - how much more of the machine's memory this process may take.
 *
 * Called by cuda.c before host pages are pinned. What is pinned can never be swapped out or
 * dropped, so it must fit into what is available now: MemAvailable of /proc/meminfo, and for
 * every control group from the process's own up to the topmost that is visible
 *
 *   left = limit - (usage - what its page cache can give up at once)
 *
 * Both versions of control groups, wherever they are mounted; in a container the path that
 * the kernel names may lie above the mount's own root. Pure reading; thread-safe. */
#include "host_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH 4096
#define LINE 8192

static FILE *open_at(const char *root, const char *path)
{
    char whole[PATH];
    int length = snprintf(whole, sizeof whole, "%s%s", root, path);
    if (length < 0 || (size_t)length >= sizeof whole) return NULL;
    return fopen(whole, "re");
}

static FILE *open_in(const char *root, const char *folder, const char *name)
{
    char path[PATH];
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (length < 0 || (size_t)length >= sizeof path) return NULL;
    return open_at(root, path);
}

/* A file of one number; false where there is none, or the word "max". */
static bool read_number(const char *root, const char *folder, const char *name,
                        uint64_t *number)
{
    FILE *file = open_in(root, folder, name);
    unsigned long long value = 0;
    if (file == NULL) return false;
    bool good = fscanf(file, "%llu", &value) == 1;
    fclose(file);
    *number = value;
    return good;
}

/* The number after `key` in a file of lines; 0 where it is not there. */
static uint64_t read_key(FILE *file, const char *key)
{
    char line[LINE];
    const size_t length = strlen(key);
    unsigned long long value = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, key, length) == 0 && sscanf(line + length, "%llu", &value) == 1)
            break;
    if (file != NULL) fclose(file);
    return value;
}

static uint64_t left_in_group(const char *root, const char *folder, bool second)
{
    uint64_t limit = 0, usage = 0;
    if (!read_number(root, folder, second ? "memory.max" : "memory.limit_in_bytes",
                     &limit) ||
        !read_number(root, folder, second ? "memory.current" : "memory.usage_in_bytes",
                     &usage))
        return UINT64_MAX;
    if (limit >= (uint64_t)1 << 60) return UINT64_MAX; /* the first version's "none" */
    uint64_t cache = read_key(open_in(root, folder, "memory.stat"),
                              second ? "inactive_file " : "total_inactive_file ");
    usage = usage > cache ? usage - cache : 0;
    return limit > usage ? limit - usage : 0;
}

/* From the group at `path` below the mount up to the mount itself. */
static uint64_t left_in_groups(const char *root, const char *mount, const char *path,
                               bool second)
{
    char folder[PATH];
    uint64_t least = UINT64_MAX;
    int length = snprintf(folder, sizeof folder, "%s%s", mount,
                          strcmp(path, "/") == 0 ? "" : path);
    if (length < 0 || (size_t)length >= sizeof folder) return least;
    for (;;) {
        uint64_t left = left_in_group(root, folder, second);
        if (left < least) least = left;
        char *slash = strrchr(folder, '/');
        if (strlen(folder) <= strlen(mount) || slash == NULL) return least;
        *slash = '\0';
    }
}

/* The process's path in a hierarchy: a line `number:controllers:path`. */
static bool group_path(const char *root, bool second, char path[PATH])
{
    char line[LINE];
    bool found = false;
    FILE *file = open_at(root, "/proc/self/cgroup");
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        char *controllers = strchr(line, ':');
        char *at = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (at == NULL) continue;
        *at++ = '\0';
        at[strcspn(at, "\n")] = '\0';
        bool mine =
            second ? strncmp(line, "0:", 2) == 0 && controllers[1] == '\0' : false;
        char *save = NULL;
        if (!second)
            for (char *word = strtok_r(controllers + 1, ",", &save); word != NULL;
                 word = strtok_r(NULL, ",", &save))
                mine = mine || strcmp(word, "memory") == 0;
        const size_t length = strlen(at);
        if (!mine || length >= PATH) continue;
        memcpy(path, at, length + 1);
        found = true;
    }
    if (file != NULL) fclose(file);
    return found;
}

/* A line of mountinfo: `id parent device root place options - type source more`. */
static bool is_mount(char *line, bool second, char **within, char **place)
{
    char *fields[6], *save = NULL, *end = strstr(line, " - ");
    if (end == NULL) return false;
    *end = '\0';
    char type[64] = "", options[1024] = "";
    if (sscanf(end + 3, "%63s %*s %1023s", type, options) < 1) return false;
    int count = 0;
    for (char *word = strtok_r(line, " ", &save); word != NULL && count < 6;
         word = strtok_r(NULL, " ", &save))
        fields[count++] = word;
    if (count < 5 || strcmp(type, second ? "cgroup2" : "cgroup") != 0) return false;
    bool memory = second;
    for (char *word = strtok_r(options, ",\n", &save); word != NULL;
         word = strtok_r(NULL, ",\n", &save))
        memory = memory || strcmp(word, "memory") == 0;
    *within = fields[3];
    *place = fields[4];
    return memory;
}

static uint64_t left_in_version(const char *root, bool second)
{
    char path[PATH], line[LINE];
    uint64_t least = UINT64_MAX;
    if (!group_path(root, second, path)) return least;
    FILE *file = open_at(root, "/proc/self/mountinfo");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        char *within = NULL, *place = NULL;
        if (!is_mount(line, second, &within, &place)) continue;
        /* The mount shows what is below `within`. A path that is not there is that of a
         * container whose own group the mount's root is. */
        const size_t length = strcmp(within, "/") == 0 ? 0 : strlen(within);
        bool below = strncmp(path, within, length) == 0 &&
                     (path[length] == '/' || path[length] == '\0');
        uint64_t left = left_in_groups(root, place, below ? path + length : "/", second);
        if (left < least) least = left;
    }
    if (file != NULL) fclose(file);
    return least;
}

ta_status ta_host_memory(const char *root, uint64_t *bytes)
{
    uint64_t kib = read_key(open_at(root, "/proc/meminfo"), "MemAvailable:");
    if (kib == 0) return TA_UNSUPPORTED;
    uint64_t least = kib << 10;
    for (int second = 0; second <= 1; second++) {
        uint64_t left = left_in_version(root, second != 0);
        if (left < least) least = left;
    }
    *bytes = least;
    return TA_OK;
}
