/* Links over the unix socket that is a file: contexts in different network namespaces that share a directory. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/link_pair.h"
#include "tests/lib/psd_test.h"
#include "worker/backend/host/net.h"

static char root[] = "/tmp/psd-path-XXXXXX";

static const char *make_dir(void)
{
    cr_assert_not_null(mkdtemp(root));
    return root;
}

static int count_files(const char *dir)
{
    int count = 0;
    DIR *listing = opendir(dir);
    cr_assert_not_null(listing);
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(listing);
    return count;
}

static host_net *open_in(const char *dir, const char *transport, uint64_t incarnation)
{
    char why[PSD_MAX_TEXT] = "";
    host_net *net = NULL;
    host_net_config config = {.job = "test",
                              .incarnation = incarnation,
                              .bind_host = "127.0.0.1",
                              .transport = transport,
                              .run_dir = dir,
                              .ring_bytes = 65536};
    cr_assert_eq(host_net_open(&config, &net, why, sizeof why), PSD_OK, "%s", why);
    return net;
}

/* From here on as if in a network namespace of its own: nobody finds its abstract name. */
static void hide_abstract(host_net *net)
{
    net_unwatch(net, net->unix_fd);
    close(net->unix_fd);
    net->unix_fd = -1;
}

/* Two nets that cannot find each other's abstract socket, and the links between them. */
static bool pair_up(link_pair *pair, const char *dir0, const char *dir1, const char *transport)
{
    char address[PSD_MAX_ADDR];
    char why[PSD_MAX_TEXT];
    const char *dirs[] = {dir0, dir1};
    memset(pair, 0, sizeof *pair);
    for (int i = 0; i < 2; i++) {
        pair->net[i] = open_in(dirs[i], transport, 100 + (uint64_t)i);
        hide_abstract(pair->net[i]);
    }
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(host_net_address(pair->net[1 - i], address, sizeof address), PSD_OK);
        cr_assert_eq(host_link_get(pair->net[i], address, &pair->link[i], why, sizeof why), PSD_OK, "%s",
                     why);
    }
    return link_pair_up(pair);
}

PSD_TEST(link_path, a_shared_directory_means_shared_memory)
{
    const char *dir = make_dir();
    link_pair pair;
    char got[5] = "";
    cr_assert(pair_up(&pair, dir, dir, "shm"), "%s", host_link_text(pair.link[0]));
    cr_assert(host_link_is_shm(pair.link[0]));
    cr_assert(host_link_is_shm(pair.link[1]));
    cr_assert(link_send_all(pair.net[1], pair.link[1], "file", 5));
    cr_assert(link_receive_all(pair.net[0], pair.link[0], got, 5));
    cr_assert_str_eq(got, "file");
    cr_assert_eq(count_files(dir), 2);
    link_pair_close(&pair);
    cr_assert_eq(rmdir(dir), 0);
}

PSD_TEST(link_path, other_directories_mean_tcp)
{
    const char *dir = make_dir();
    char one[64], two[64];
    link_pair pair;
    snprintf(one, sizeof one, "%s/one", dir);
    snprintf(two, sizeof two, "%s/two", dir);
    cr_assert(pair_up(&pair, one, two, "auto"), "%s", host_link_text(pair.link[0]));
    cr_assert_not(host_link_is_shm(pair.link[0]));
    const char *text = host_link_text(pair.link[0]);
    cr_assert_not_null(strstr(text, "not shared memory: the peer is not on this host, or shares neither"),
                       "%s", text);
    cr_assert_not_null(strstr(text, one), "%s", text);
    link_pair_close(&pair);
    cr_assert_not(pair_up(&pair, one, two, "shm"));
    cr_assert_eq(host_link_status(pair.link[0]), PSD_ERR_UNREACHABLE);
    link_pair_close(&pair);
    cr_assert_eq(rmdir(one), 0);
    cr_assert_eq(rmdir(two), 0);
    cr_assert_eq(rmdir(dir), 0);
}

/* Where no file can be made, everything but links between network namespaces works. */
PSD_TEST(link_path, no_place_for_the_file)
{
    const char *dir = make_dir();
    char longer[200], foreign[64], missing[64];
    snprintf(longer, sizeof longer, "%s/%0*d", dir, 120, 0);
    snprintf(foreign, sizeof foreign, "%s/foreign", dir);
    snprintf(missing, sizeof missing, "%s/missing/below", dir);
    cr_assert_eq(mkdir(foreign, 0755), 0);
    if (geteuid() == 0)
        cr_assert_eq(chown(foreign, 12345, 12345), 0);
    const char *bad[] = {longer, missing, geteuid() == 0 ? foreign : missing};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        link_pair pair = {{open_in(bad[i], "shm", 1), open_in(bad[i], "shm", 2)}, {NULL, NULL}};
        char address[PSD_MAX_ADDR], why[PSD_MAX_TEXT];
        for (int k = 0; k < 2; k++) {
            cr_assert_eq(pair.net[k]->path_fd, -1);
            cr_assert_eq(host_net_address(pair.net[1 - k], address, sizeof address), PSD_OK);
            cr_assert_eq(host_link_get(pair.net[k], address, &pair.link[k], why, sizeof why), PSD_OK);
        }
        cr_assert(link_pair_up(&pair), "%s", host_link_text(pair.link[0]));
        link_pair_close(&pair);
    }
    cr_assert_eq(rmdir(foreign), 0);
    cr_assert_eq(rmdir(dir), 0);
}

/* A socket file of this name, `age` seconds old; the socket stays bound if `fd` is given. */
static void leave_file(const char *dir, const char *name, int age, int *fd)
{
    struct sockaddr_un address;
    struct timespec times[2] = {{.tv_sec = time(NULL) - age}, {.tv_sec = time(NULL) - age}};
    cr_assert(unix_path_address(dir, name, &address));
    int bound = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(bound, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(utimensat(AT_FDCWD, address.sun_path, times, AT_SYMLINK_NOFOLLOW), 0);
    if (fd)
        *fd = bound;
    else
        close(bound);
}

static bool exists(const char *dir, const char *name)
{
    struct sockaddr_un address;
    cr_assert(unix_path_address(dir, name, &address));
    return access(address.sun_path, F_OK) == 0;
}

PSD_TEST(link_path, what_dead_processes_left_is_removed)
{
    const char *dir = make_dir();
    int alive;
    leave_file(dir, "psd-00000000000000aa", 60, NULL);
    leave_file(dir, "psd-00000000000000bb", 0, NULL);
    leave_file(dir, "psd-00000000000000cc", 60, &alive);
    leave_file(dir, "somebody", 60, NULL);
    leave_file(dir, "psd-0x", 60, NULL);
    host_net *net = open_in(dir, "auto", 7);
    cr_assert_not(exists(dir, "psd-00000000000000aa"));
    cr_assert(exists(dir, "psd-00000000000000bb"), "its owner may be about to listen");
    cr_assert(exists(dir, "psd-00000000000000cc"), "its owner lives");
    cr_assert(exists(dir, "somebody"));
    cr_assert(exists(dir, "psd-0x"));
    host_net_close(net);
    close(alive);
    const char *left[] = {"psd-00000000000000bb", "psd-00000000000000cc", "somebody", "psd-0x"};
    for (size_t i = 0; i < sizeof left / sizeof left[0]; i++)
        unix_path_remove(dir, left[i]);
    cr_assert_eq(rmdir(dir), 0);
}

/* The look at who is dead must not be taken for a stranger by those who live. */
PSD_TEST(link_path, the_living_do_not_notice_the_search)
{
    const char *dir = make_dir();
    struct sockaddr_un address;
    struct timespec old[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    host_net *net = open_in(dir, "auto", 7);
    cr_assert(unix_path_address(dir, net->address.unix_name, &address));
    cr_assert_eq(utimensat(AT_FDCWD, address.sun_path, old, 0), 0);
    host_net *other = open_in(dir, "auto", 8);
    cr_assert_not(host_net_poll(net));
    cr_assert_eq(host_net_refused(net), 0);
    cr_assert(exists(dir, net->address.unix_name));
    host_net_close(net);
    host_net_close(other);
    cr_assert_eq(rmdir(dir), 0);
}

PSD_TEST(link_path, a_stranger_on_the_file_is_counted)
{
    const char *dir = make_dir();
    struct sockaddr_un address;
    host_net *net = open_in(dir, "auto", 7);
    cr_assert(unix_path_address(dir, net->address.unix_name, &address));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    char request[1024] = "GET / HTTP/1.0\r\n\r\n";
    cr_assert_eq(write(fd, request, sizeof request), (ssize_t)sizeof request);
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), 5000);
    while (host_net_refused(net) == 0 && psd_now_ns() < deadline)
        (void)host_net_poll(net);
    cr_assert_eq(host_net_refused(net), 1);
    close(fd);
    host_net_close(net);
    cr_assert_eq(rmdir(dir), 0);
}

PSD_TEST(link_path, a_forked_child_leaves_the_file)
{
    const char *dir = make_dir();
    host_net *net = open_in(dir, "auto", 7);
    int status = 1;
    pid_t child = fork();
    if (child == 0) {
        host_net_close(net);
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    cr_assert(exists(dir, net->address.unix_name));
    host_net_close(net);
    cr_assert_eq(rmdir(dir), 0);
}

PSD_TEST(link_path, tcp_alone_makes_no_file)
{
    const char *dir = make_dir();
    host_net *net = open_in(dir, "tcp", 7);
    cr_assert_eq(count_files(dir), 0);
    host_net_close(net);
    cr_assert_eq(rmdir(dir), 0);
}

PSD_TEST(link_path, the_default_directory_is_the_users)
{
    char dir[UNIX_PATH_DIR], expected[UNIX_PATH_DIR];
    snprintf(expected, sizeof expected, "/dev/shm/psd-%lu", (unsigned long)geteuid());
    unix_path_dir("", dir);
    cr_assert_str_eq(dir, expected);
    unix_path_dir(NULL, dir);
    cr_assert_str_eq(dir, expected);
    unix_path_dir("/run/psd", dir);
    cr_assert_str_eq(dir, "/run/psd");
}
