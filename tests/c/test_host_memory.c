/* test_host_memory.c - what the machine and its control groups leave, on made-up trees. */
#include <sys/stat.h>
#include <unistd.h>

#include "driver/host_memory.h"
#include "testing.h"

static char root[256];

static void put(const char *path, const char *text)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    for (char *slash = strchr(whole + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(whole, 0777);
        *slash = '/';
    }
    FILE *file = fopen(whole, "w");
    if (file == NULL) abort();
    fputs(text, file);
    fclose(file);
}

static void new_root(const char *name)
{
    const char *folder = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/torcharena-host-%d-%s", folder ? folder : "/tmp",
             (int)getpid(), name);
    put("/proc/meminfo", "MemTotal: 100 kB\nMemAvailable:   64000 kB\n");
}

static void forget_root(void)
{
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    if (system(command) != 0) abort();
}

static uint64_t left(void)
{
    uint64_t bytes = 0;
    ta_status status = ta_host_memory(root, &bytes);
    return status == TA_OK ? bytes : UINT64_MAX;
}

TEST(available_alone)
{
    new_root("alone");
    CHECK_EQ(left(), (uint64_t)64000 << 10);
    forget_root();
    uint64_t bytes = 7;
    CHECK_EQ(ta_host_memory(root, &bytes), TA_UNSUPPORTED);
    CHECK_EQ(bytes, 7);
}

#define MOUNT_2 "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw\n"

TEST(the_tightest_ancestor_of_version_two)
{
    new_root("two");
    put("/proc/self/cgroup", "0::/job/step/task\n");
    put("/proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" MOUNT_2);
    put("/sys/fs/cgroup/job/step/task/memory.max", "max\n");
    put("/sys/fs/cgroup/job/step/task/memory.current", "1000\n");
    put("/sys/fs/cgroup/job/step/memory.max", "50000000\n");
    put("/sys/fs/cgroup/job/step/memory.current", "30000000\n");
    put("/sys/fs/cgroup/job/step/memory.stat", "anon 1\ninactive_file 4000000\n");
    CHECK_EQ(left(), 24000000);
    put("/sys/fs/cgroup/job/memory.max", "31000000\n");
    put("/sys/fs/cgroup/job/memory.current", "30000000\n");
    CHECK_EQ(left(), 1000000);
    put("/sys/fs/cgroup/job/memory.current", "32000000\n"); /* above: nothing is left */
    CHECK_EQ(left(), 0);
    forget_root();
}

TEST(a_container_whose_own_group_is_the_mount)
{
    new_root("container");
    put("/proc/self/cgroup", "5:cpu,memory:/docker/abc/inner\n0::/\n");
    put("/proc/self/mountinfo",
        "32 31 0:29 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9000000\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "5000000\n");
    put("/sys/fs/cgroup/memory/memory.stat",
        "inactive_file 7\ntotal_inactive_file 1000000\n");
    CHECK_EQ(left(), 5000000);
    put("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/inner/memory.usage_in_bytes", "5\n");
    CHECK_EQ(left(), 5000000);
    put("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "3000005\n");
    CHECK_EQ(left(), 3000000);
    forget_root();
}

TEST(a_path_outside_of_the_mount_is_its_root)
{
    new_root("outside");
    put("/proc/self/cgroup", "0::/../host/path\n");
    put("/proc/self/mountinfo",
        "31 23 0:28 /kube/pod /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    put("/sys/fs/cgroup/memory.max", "8000000\n");
    put("/sys/fs/cgroup/memory.current", "1000000\n");
    CHECK_EQ(left(), 7000000);
    forget_root();
}

TEST(this_machine_says_something)
{
    uint64_t bytes = 0;
    CHECK_EQ(ta_host_memory("", &bytes), TA_OK);
    CHECK(bytes > 1 << 20);
}

TEST_MAIN()
