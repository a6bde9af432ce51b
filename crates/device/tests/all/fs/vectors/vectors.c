/*
 * Writes the bytes of FUSE structures as the kernel's header lays them out, as Rust constants: what the tests here
 * compare with. It needs a linux/fuse.h of protocol 7.45 (Linux 6.18) on a little-endian machine:
 *
 *     cc -Wall -I PATH-TO-HEADERS vectors.c -o vectors
 *     for kind in numbers requests replies; do ./vectors $kind > $kind.rs && rustfmt $kind.rs; done
 *
 * A field's value is its own, so that two fields cannot be taken for each other.
 */
#include <linux/fuse.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#if FUSE_KERNEL_MINOR_VERSION != 45
#error "this needs the header of protocol 7.45"
#endif

static unsigned char buffer[4096];
static size_t length;
static const char *all[128];
static size_t all_length;

static void add(const void *bytes, size_t size)
{
	memcpy(buffer + length, bytes, size);
	length += size;
}

static void add_name(const char *name)
{
	add(name, strlen(name) + 1);
}

static void print(const char *name, const char *what)
{
	printf("\n/// %s\npub(crate) const %s: &[u8] = &[", what, name);
	for (size_t i = 0; i < length; i++)
		printf("%s0x%02x,", i % 16 ? " " : "\n    ", buffer[i]);
	printf("\n];\n");
	length = 0;
}

/* Starts a request, which `finish` ends; its `extensions` are counted in bytes. */
static void begin(void)
{
	length = sizeof(struct fuse_in_header);
}

static void finish(const char *name, uint32_t opcode, size_t extensions)
{
	struct fuse_in_header header = {
		.len = length,
		.opcode = opcode,
		.unique = 0xa1a2a3a4a5a6a7a8,
		.nodeid = 0xb1b2b3b4b5b6b7b8,
		.uid = 0xc1c2c3c4,
		.gid = 0xd1d2d3d4,
		.pid = 0xe1e2e3e4,
		.total_extlen = extensions / 8,
	};
	memcpy(buffer, &header, sizeof(header));
	print(name, "A request.");
	all[all_length++] = name;
}

#define REQUEST(name, opcode, type, ...)                                                                               \
	do {                                                                                                           \
		struct type in = { __VA_ARGS__ };                                                                      \
		begin();                                                                                               \
		add(&in, sizeof(in));                                                                                  \
		finish(name, opcode, 0);                                                                               \
	} while (0)

#define NAMED(name, opcode, type, string, ...)                                                                         \
	do {                                                                                                           \
		struct type in = { __VA_ARGS__ };                                                                      \
		begin();                                                                                               \
		add(&in, sizeof(in));                                                                                  \
		add_name(string);                                                                                      \
		finish(name, opcode, 0);                                                                               \
	} while (0)

#define REPLY(name, type, ...)                                                                                         \
	do {                                                                                                           \
		struct type out = { __VA_ARGS__ };                                                                     \
		add(&out, sizeof(out));                                                                                \
		print(name, "A reply.");                                                                               \
	} while (0)

static size_t add_security(void)
{
	const char *name = "security.selinux", *value = "system_u:object_r:x";
	size_t inner = sizeof(struct fuse_secctx) + strlen(name) + 1 + strlen(value);
	struct fuse_secctx_header header = { .size = sizeof(header) + FUSE_REC_ALIGN(inner), .nr_secctx = 1 };
	struct fuse_secctx context = { .size = strlen(value) };
	uint64_t zero = 0;

	add(&header, sizeof(header));
	add(&context, sizeof(context));
	add_name(name);
	add(value, strlen(value));
	add(&zero, FUSE_REC_ALIGN(inner) - inner);
	return header.size;
}

static size_t add_groups(void)
{
	struct fuse_ext_header header = { .size = 16, .type = FUSE_EXT_GROUPS };
	uint32_t groups[2] = { 1, 0x51525354 };

	add(&header, sizeof(header));
	add(groups, sizeof(groups));
	return header.size;
}

static void requests(void)
{
	size_t extensions;
	struct fuse_create_in create = { 0x11121314, 0x21222324, 0x31323334, FUSE_OPEN_KILL_SUIDGID };
	struct fuse_batch_forget_in batch = { .count = 2 };
	struct fuse_forget_one forgets[2] = { { 0x1112131415161718, 3 }, { 0x2122232425262728, 4 } };
	struct fuse_rename_in rename = { .newdir = 0x1112131415161718 };
	struct fuse_rename2_in rename2 = { .newdir = 0x1112131415161718, .flags = 2 };
	struct fuse_setxattr_in setxattr = { .size = 5, .flags = 1, .setxattr_flags = FUSE_SETXATTR_ACL_KILL_SGID };
	struct fuse_ioctl_in ioctl = {
		.fh = 0x1112131415161718, .flags = 0x21222324, .cmd = 0x31323334, .arg = 0x4142434445464748,
		.in_size = 4, .out_size = 0x51525354,
	};
	struct fuse_write_in write = {
		.fh = 0x1112131415161718, .offset = 0x2122232425262728, .size = 6,
		.write_flags = FUSE_WRITE_LOCKOWNER | FUSE_WRITE_KILL_SUIDGID, .lock_owner = 0x4142434445464748,
		.flags = 0x51525354,
	};

	begin(), add_name("name"), finish("LOOKUP", FUSE_LOOKUP, 0);
	REQUEST("FORGET", FUSE_FORGET, fuse_forget_in, .nlookup = 0x1112131415161718);
	begin(), add(&batch, sizeof(batch)), add(forgets, sizeof(forgets)), finish("BATCH_FORGET", FUSE_BATCH_FORGET, 0);
	REQUEST("GETATTR", FUSE_GETATTR, fuse_getattr_in, .getattr_flags = FUSE_GETATTR_FH, .fh = 0x1112131415161718);
	REQUEST("SETATTR", FUSE_SETATTR, fuse_setattr_in,
		.valid = FATTR_MODE | FATTR_UID | FATTR_GID | FATTR_SIZE | FATTR_ATIME | FATTR_MTIME | FATTR_FH
			| FATTR_LOCKOWNER | FATTR_CTIME | FATTR_KILL_SUIDGID,
		.fh = 0x1112131415161718, .size = 0x2122232425262728, .lock_owner = 0x3132333435363738,
		.atime = 0x4142434445464748, .mtime = -2, .ctime = 0x6162636465666768, .atimensec = 71, .mtimensec = 72,
		.ctimensec = 73, .mode = 0x74757677, .uid = 0x81828384, .gid = 0x91929394);
	REQUEST("SETATTR_NOW", FUSE_SETATTR, fuse_setattr_in,
		.valid = FATTR_ATIME | FATTR_MTIME | FATTR_ATIME_NOW | FATTR_MTIME_NOW, .atimensec = -1, .mtimensec = -1);
	begin(), finish("READLINK", FUSE_READLINK, 0);
	begin(), add_name("name"), add_name("../target"), finish("SYMLINK", FUSE_SYMLINK, 0);
	NAMED("MKNOD", FUSE_MKNOD, fuse_mknod_in, "name", .mode = 0x11121314, .rdev = 0x12345678, .umask = 0x31323334);
	NAMED("MKDIR", FUSE_MKDIR, fuse_mkdir_in, "name", .mode = 0x11121314, .umask = 0x31323334);
	begin(), add_name("name"), finish("UNLINK", FUSE_UNLINK, 0);
	begin(), add_name("name"), finish("RMDIR", FUSE_RMDIR, 0);
	begin(), add(&rename, sizeof(rename)), add_name("name"), add_name("new"), finish("RENAME", FUSE_RENAME, 0);
	begin(), add(&rename2, sizeof(rename2)), add_name("name"), add_name("new"), finish("RENAME2", FUSE_RENAME2, 0);
	NAMED("LINK", FUSE_LINK, fuse_link_in, "name", .oldnodeid = 0x1112131415161718);
	REQUEST("OPEN", FUSE_OPEN, fuse_open_in, .flags = 0x11121314, .open_flags = FUSE_OPEN_KILL_SUIDGID);
	REQUEST("OPENDIR", FUSE_OPENDIR, fuse_open_in, .flags = 0x11121314);
	REQUEST("READ", FUSE_READ, fuse_read_in, .fh = 0x1112131415161718, .offset = 0x2122232425262728,
		.size = 0x31323334, .read_flags = FUSE_READ_LOCKOWNER, .lock_owner = 0x4142434445464748, .flags = 0x51525354);
	begin(), add(&write, sizeof(write)), add("abcdef", 6), finish("WRITE", FUSE_WRITE, 0);
	begin(), finish("STATFS", FUSE_STATFS, 0);
	REQUEST("RELEASE", FUSE_RELEASE, fuse_release_in, .fh = 0x1112131415161718, .flags = 0x21222324,
		.release_flags = FUSE_RELEASE_FLUSH, .lock_owner = 0x3132333435363738);
	REQUEST("RELEASEDIR", FUSE_RELEASEDIR, fuse_release_in, .fh = 0x1112131415161718, .flags = 0x21222324,
		.release_flags = FUSE_RELEASE_FLOCK_UNLOCK, .lock_owner = 0x3132333435363738);
	REQUEST("FSYNC", FUSE_FSYNC, fuse_fsync_in, .fh = 0x1112131415161718, .fsync_flags = FUSE_FSYNC_FDATASYNC);
	REQUEST("FSYNCDIR", FUSE_FSYNCDIR, fuse_fsync_in, .fh = 0x1112131415161718);
	begin(), add(&setxattr, sizeof(setxattr)), add_name("user.a"), add("value", 5),
		finish("SETXATTR", FUSE_SETXATTR, 0);
	begin(), add(&setxattr, FUSE_COMPAT_SETXATTR_IN_SIZE), add_name("user.a"), add("value", 5),
		finish("SETXATTR_SHORT", FUSE_SETXATTR, 0);
	NAMED("GETXATTR", FUSE_GETXATTR, fuse_getxattr_in, "user.a", .size = 0x11121314);
	REQUEST("LISTXATTR", FUSE_LISTXATTR, fuse_getxattr_in, .size = 0x11121314);
	begin(), add_name("user.a"), finish("REMOVEXATTR", FUSE_REMOVEXATTR, 0);
	REQUEST("FLUSH", FUSE_FLUSH, fuse_flush_in, .fh = 0x1112131415161718, .lock_owner = 0x3132333435363738);
	REQUEST("INIT", FUSE_INIT, fuse_init_in, .major = 7, .minor = 45, .max_readahead = 0x11121314,
		.flags = FUSE_INIT_EXT | FUSE_ASYNC_READ, .flags2 = FUSE_SECURITY_CTX >> 32);
	REQUEST("READDIR", FUSE_READDIR, fuse_read_in, .fh = 0x1112131415161718, .offset = 0xf122232425262728,
		.size = 0x31323334);
	REQUEST("READDIRPLUS", FUSE_READDIRPLUS, fuse_read_in, .fh = 0x1112131415161718, .offset = 0xf122232425262728,
		.size = 0x31323334);
	REQUEST("GETLK", FUSE_GETLK, fuse_lk_in, .fh = 0x1112131415161718, .owner = 0x2122232425262728,
		.lk = { .start = 0x3132333435363738, .end = 0x4142434445464748, .type = 1, .pid = 0x51525354 });
	REQUEST("SETLK", FUSE_SETLK, fuse_lk_in, .fh = 0x1112131415161718, .owner = 0x2122232425262728,
		.lk = { .start = 0, .end = INT64_MAX, .type = 2, .pid = 0x51525354 });
	REQUEST("SETLKW", FUSE_SETLKW, fuse_lk_in, .fh = 0x1112131415161718, .owner = 0x2122232425262728,
		.lk = { .start = 0, .end = INT64_MAX, .type = 0, .pid = 0x51525354 }, .lk_flags = FUSE_LK_FLOCK);
	REQUEST("ACCESS", FUSE_ACCESS, fuse_access_in, .mask = 0x11121314);
	begin(), add(&create, sizeof(create)), add_name("name"), finish("CREATE", FUSE_CREATE, 0);
	begin(), add(&create, sizeof(create)), add_name("name"), extensions = add_security(), extensions += add_groups(),
		finish("CREATE_EXTENDED", FUSE_CREATE, extensions);
	/* As Linux before 6.3, which does not say how long it is. */
	begin(), add(&create, sizeof(create)), add_name("name"), add_security(),
		finish("CREATE_LABELLED", FUSE_CREATE, 0);
	begin(), add(&create, sizeof(create)), add_name("/"), finish("TMPFILE", FUSE_TMPFILE, 0);
	REQUEST("INTERRUPT", FUSE_INTERRUPT, fuse_interrupt_in, .unique = 0x1112131415161718);
	REQUEST("BMAP", FUSE_BMAP, fuse_bmap_in, .block = 0x1112131415161718, .blocksize = 512);
	begin(), finish("DESTROY", FUSE_DESTROY, 0);
	begin(), add(&ioctl, sizeof(ioctl)), add("\x61\x62\x63\x64", 4), finish("IOCTL", FUSE_IOCTL, 0);
	REQUEST("POLL", FUSE_POLL, fuse_poll_in, .fh = 0x1112131415161718, .kh = 0x2122232425262728,
		.flags = FUSE_POLL_SCHEDULE_NOTIFY, .events = 0x41424344);
	REQUEST("NOTIFY_REPLY", FUSE_NOTIFY_REPLY, fuse_notify_retrieve_in, .offset = 1);
	REQUEST("FALLOCATE", FUSE_FALLOCATE, fuse_fallocate_in, .fh = 0x1112131415161718, .offset = 0x2122232425262728,
		.length = 0x3132333435363738, .mode = 0x41424344);
	REQUEST("LSEEK", FUSE_LSEEK, fuse_lseek_in, .fh = 0x1112131415161718, .offset = 0x2122232425262728, .whence = 4);
	REQUEST("COPY_FILE_RANGE", FUSE_COPY_FILE_RANGE, fuse_copy_file_range_in, 0x1112131415161718, 0x2122232425262728,
		0x3132333435363738, 0x4142434445464748, 0x5152535455565758, 0x6162636465666768, 0x7172737475767778);
	REQUEST("COPY_FILE_RANGE_64", FUSE_COPY_FILE_RANGE_64, fuse_copy_file_range_in, 0x1112131415161718,
		0x2122232425262728, 0x3132333435363738, 0x4142434445464748, 0x5152535455565758, 0x6162636465666768,
		0x7172737475767778);
	REQUEST("SETUPMAPPING", FUSE_SETUPMAPPING, fuse_setupmapping_in, .fh = 1, .len = 4096);
	REQUEST("REMOVEMAPPING", FUSE_REMOVEMAPPING, fuse_removemapping_in, .count = 0);
	REQUEST("SYNCFS", FUSE_SYNCFS, fuse_syncfs_in, .padding = 0);
	REQUEST("STATX", FUSE_STATX, fuse_statx_in, .getattr_flags = FUSE_GETATTR_FH, .fh = 0x1112131415161718,
		.sx_flags = 0x21222324, .sx_mask = 0x31323334);
}

#define ATTR                                                                                                           \
	{                                                                                                              \
		.ino = 0x1112131415161718, .size = 0x2122232425262728, .blocks = 0x3132333435363738,                   \
		.atime = 0x4142434445464748, .mtime = -2, .ctime = 0x6162636465666768, .atimensec = 0x71727374,       \
		.mtimensec = 0x75767778, .ctimensec = 0x797a7b7c, .mode = 0x81828384, .nlink = 0x85868788,             \
		.uid = 0x91929394, .gid = 0x95969798, .rdev = 0xa1a2a3a4, .blksize = 0xa5a6a7a8,                       \
		.flags = FUSE_ATTR_SUBMOUNT,                                                                           \
	}
#define ENTRY                                                                                                          \
	{                                                                                                              \
		.nodeid = 0xb1b2b3b4b5b6b7b8, .generation = 0xc1c2c3c4c5c6c7c8, .entry_valid = 3, .attr_valid = 4,     \
		.entry_valid_nsec = 5, .attr_valid_nsec = 6, .attr = ATTR,                                             \
	}

static void replies(void)
{
	struct fuse_entry_out entry = ENTRY;
	struct fuse_dirent dirent = { .ino = 0x1112131415161718, .off = 0x2122232425262728, .namelen = 5, .type = 8 };
	unsigned char zeroes[8] = { 0 };

	REPLY("OUT_HEADER", fuse_out_header, .len = 0x11121314, .error = -2, .unique = 0x2122232425262728);
	REPLY("ATTR_OUT", fuse_attr_out, .attr_valid = 3, .attr_valid_nsec = 4, .attr = ATTR);
	REPLY("ENTRY_OUT", fuse_entry_out, .nodeid = 0xb1b2b3b4b5b6b7b8, .generation = 0xc1c2c3c4c5c6c7c8,
	      .entry_valid = 3, .attr_valid = 4, .entry_valid_nsec = 5, .attr_valid_nsec = 6, .attr = ATTR);
	REPLY("OPEN_OUT", fuse_open_out, .fh = 0x1112131415161718,
	      .open_flags = FOPEN_KEEP_CACHE | FOPEN_PARALLEL_DIRECT_WRITES);
	REPLY("WRITE_OUT", fuse_write_out, .size = 0x11121314);
	REPLY("COPY_FILE_RANGE_OUT", fuse_copy_file_range_out, .bytes_copied = 0x1112131415161718);
	REPLY("GETXATTR_OUT", fuse_getxattr_out, .size = 0x11121314);
	REPLY("STATFS_OUT", fuse_statfs_out,
	      { .blocks = 0x1112131415161718, .bfree = 0x2122232425262728, .bavail = 0x3132333435363738,
		.files = 0x4142434445464748, .ffree = 0x5152535455565758, .bsize = 0x61626364, .namelen = 0x65666768,
		.frsize = 0x71727374 });
	REPLY("STATX_OUT", fuse_statx_out, .attr_valid = 3, .attr_valid_nsec = 4, .flags = FUSE_ATTR_SUBMOUNT,
	      .stat = { .mask = 0x11121314, .blksize = 0x15161718, .attributes = 0x2122232425262728, .nlink = 0x31323334,
			.uid = 0x35363738, .gid = 0x41424344, .mode = 0x4546, .ino = 0x5152535455565758,
			.size = 0x6162636465666768, .blocks = 0x7172737475767778, .attributes_mask = 0x8182838485868788,
			.atime = { .tv_sec = -1, .tv_nsec = 1 }, .btime = { .tv_sec = -2, .tv_nsec = 2 },
			.ctime = { .tv_sec = -3, .tv_nsec = 3 }, .mtime = { .tv_sec = -4, .tv_nsec = 4 },
			.rdev_major = 0x91929394, .rdev_minor = 0x95969798, .dev_major = 0xa1a2a3a4,
			.dev_minor = 0xa5a6a7a8 });
	REPLY("LK_OUT", fuse_lk_out, { .start = 0x1112131415161718, .end = 0x2122232425262728, .type = 1,
				       .pid = 0x31323334 });
	REPLY("LSEEK_OUT", fuse_lseek_out, .offset = 0x1112131415161718);
	REPLY("IOCTL_OUT", fuse_ioctl_out, .result = -2);
	REPLY("POLL_OUT", fuse_poll_out, .revents = 0x11121314);
	REPLY("INIT_OUT", fuse_init_out, .major = 7, .minor = 43, .max_readahead = 0x11121314,
	      .flags = FUSE_INIT_EXT | FUSE_MAX_PAGES | FUSE_ASYNC_READ, .max_background = 0x2122,
	      .congestion_threshold = 0x2324, .max_write = 0x01000000, .time_gran = 0x31, .max_pages = 0x1000,
	      .flags2 = FUSE_REQUEST_TIMEOUT >> 32, .request_timeout = 0x4142);

	add(&dirent, sizeof(dirent)), add("names", 5), add(zeroes, FUSE_DIRENT_SIZE(&dirent) - length);
	print("DIRENT", "A directory entry.");
	add(&entry, sizeof(entry)), add(&dirent, sizeof(dirent)), add("names", 5);
	add(zeroes, FUSE_DIRENT_ALIGN(length) - length);
	print("DIRENTPLUS", "A directory entry with what LOOKUP would have answered.");
}

#define CONSTANT(name) printf("    (\"" #name "\", 0x%llx),\n", (unsigned long long)(name) & mask)

static void constants(void)
{
	unsigned long long mask = UINT32_MAX;

	printf("\n/// `enum fuse_opcode`.\npub(crate) const OPCODES: &[(&str, u64)] = &[\n");
	CONSTANT(FUSE_LOOKUP); CONSTANT(FUSE_FORGET); CONSTANT(FUSE_GETATTR); CONSTANT(FUSE_SETATTR);
	CONSTANT(FUSE_READLINK); CONSTANT(FUSE_SYMLINK); CONSTANT(FUSE_MKNOD); CONSTANT(FUSE_MKDIR);
	CONSTANT(FUSE_UNLINK); CONSTANT(FUSE_RMDIR); CONSTANT(FUSE_RENAME); CONSTANT(FUSE_LINK); CONSTANT(FUSE_OPEN);
	CONSTANT(FUSE_READ); CONSTANT(FUSE_WRITE); CONSTANT(FUSE_STATFS); CONSTANT(FUSE_RELEASE);
	CONSTANT(FUSE_FSYNC); CONSTANT(FUSE_SETXATTR); CONSTANT(FUSE_GETXATTR); CONSTANT(FUSE_LISTXATTR);
	CONSTANT(FUSE_REMOVEXATTR); CONSTANT(FUSE_FLUSH); CONSTANT(FUSE_INIT); CONSTANT(FUSE_OPENDIR);
	CONSTANT(FUSE_READDIR); CONSTANT(FUSE_RELEASEDIR); CONSTANT(FUSE_FSYNCDIR); CONSTANT(FUSE_GETLK);
	CONSTANT(FUSE_SETLK); CONSTANT(FUSE_SETLKW); CONSTANT(FUSE_ACCESS); CONSTANT(FUSE_CREATE);
	CONSTANT(FUSE_INTERRUPT); CONSTANT(FUSE_BMAP); CONSTANT(FUSE_DESTROY); CONSTANT(FUSE_IOCTL);
	CONSTANT(FUSE_POLL); CONSTANT(FUSE_NOTIFY_REPLY); CONSTANT(FUSE_BATCH_FORGET); CONSTANT(FUSE_FALLOCATE);
	CONSTANT(FUSE_READDIRPLUS); CONSTANT(FUSE_RENAME2); CONSTANT(FUSE_LSEEK); CONSTANT(FUSE_COPY_FILE_RANGE);
	CONSTANT(FUSE_SETUPMAPPING); CONSTANT(FUSE_REMOVEMAPPING); CONSTANT(FUSE_SYNCFS); CONSTANT(FUSE_TMPFILE);
	CONSTANT(FUSE_STATX); CONSTANT(FUSE_COPY_FILE_RANGE_64);
	printf("];\n");
	printf("\n/// Flags of other structures than INIT's.\npub(crate) const FLAGS: &[(&str, u64)] = &[\n");
	CONSTANT(FATTR_MODE); CONSTANT(FATTR_UID); CONSTANT(FATTR_GID); CONSTANT(FATTR_SIZE); CONSTANT(FATTR_ATIME);
	CONSTANT(FATTR_MTIME); CONSTANT(FATTR_FH); CONSTANT(FATTR_ATIME_NOW); CONSTANT(FATTR_MTIME_NOW);
	CONSTANT(FATTR_LOCKOWNER); CONSTANT(FATTR_CTIME); CONSTANT(FATTR_KILL_SUIDGID); CONSTANT(FOPEN_DIRECT_IO);
	CONSTANT(FOPEN_KEEP_CACHE); CONSTANT(FOPEN_NONSEEKABLE); CONSTANT(FOPEN_CACHE_DIR); CONSTANT(FOPEN_STREAM);
	CONSTANT(FOPEN_NOFLUSH); CONSTANT(FOPEN_PARALLEL_DIRECT_WRITES); CONSTANT(FOPEN_PASSTHROUGH);
	CONSTANT(FUSE_OPEN_KILL_SUIDGID); CONSTANT(FUSE_RELEASE_FLUSH); CONSTANT(FUSE_RELEASE_FLOCK_UNLOCK);
	CONSTANT(FUSE_GETATTR_FH); CONSTANT(FUSE_LK_FLOCK); CONSTANT(FUSE_WRITE_CACHE);
	CONSTANT(FUSE_WRITE_LOCKOWNER); CONSTANT(FUSE_WRITE_KILL_SUIDGID); CONSTANT(FUSE_READ_LOCKOWNER);
	CONSTANT(FUSE_IOCTL_COMPAT); CONSTANT(FUSE_IOCTL_UNRESTRICTED); CONSTANT(FUSE_IOCTL_RETRY);
	CONSTANT(FUSE_IOCTL_32BIT); CONSTANT(FUSE_IOCTL_DIR); CONSTANT(FUSE_IOCTL_COMPAT_X32);
	CONSTANT(FUSE_POLL_SCHEDULE_NOTIFY); CONSTANT(FUSE_FSYNC_FDATASYNC); CONSTANT(FUSE_ATTR_SUBMOUNT);
	CONSTANT(FUSE_ATTR_DAX); CONSTANT(FUSE_SETXATTR_ACL_KILL_SGID); CONSTANT(FUSE_MAX_NR_SECCTX);
	CONSTANT(FUSE_EXT_GROUPS); CONSTANT(FUSE_ROOT_ID);
	printf("];\n");
	printf("\n/// Flags of INIT.\npub(crate) const INIT_FLAGS: &[(&str, u64)] = &[\n");
	/* Those of the lower half are signed there; bit 31 must not reach the upper one. */
	CONSTANT(FUSE_ASYNC_READ); CONSTANT(FUSE_POSIX_LOCKS); CONSTANT(FUSE_FILE_OPS); CONSTANT(FUSE_ATOMIC_O_TRUNC);
	CONSTANT(FUSE_EXPORT_SUPPORT); CONSTANT(FUSE_BIG_WRITES); CONSTANT(FUSE_DONT_MASK);
	CONSTANT(FUSE_SPLICE_WRITE); CONSTANT(FUSE_SPLICE_MOVE); CONSTANT(FUSE_SPLICE_READ);
	CONSTANT(FUSE_FLOCK_LOCKS); CONSTANT(FUSE_HAS_IOCTL_DIR); CONSTANT(FUSE_AUTO_INVAL_DATA);
	CONSTANT(FUSE_DO_READDIRPLUS); CONSTANT(FUSE_READDIRPLUS_AUTO); CONSTANT(FUSE_ASYNC_DIO);
	CONSTANT(FUSE_WRITEBACK_CACHE); CONSTANT(FUSE_NO_OPEN_SUPPORT); CONSTANT(FUSE_PARALLEL_DIROPS);
	CONSTANT(FUSE_HANDLE_KILLPRIV); CONSTANT(FUSE_POSIX_ACL); CONSTANT(FUSE_ABORT_ERROR);
	CONSTANT(FUSE_MAX_PAGES); CONSTANT(FUSE_CACHE_SYMLINKS); CONSTANT(FUSE_NO_OPENDIR_SUPPORT);
	CONSTANT(FUSE_EXPLICIT_INVAL_DATA); CONSTANT(FUSE_MAP_ALIGNMENT); CONSTANT(FUSE_SUBMOUNTS);
	CONSTANT(FUSE_HANDLE_KILLPRIV_V2); CONSTANT(FUSE_SETXATTR_EXT); CONSTANT(FUSE_INIT_EXT);
	CONSTANT(FUSE_INIT_RESERVED);
	mask = UINT64_MAX;
	CONSTANT(FUSE_SECURITY_CTX); CONSTANT(FUSE_HAS_INODE_DAX); CONSTANT(FUSE_CREATE_SUPP_GROUP);
	CONSTANT(FUSE_HAS_EXPIRE_ONLY); CONSTANT(FUSE_DIRECT_IO_ALLOW_MMAP); CONSTANT(FUSE_PASSTHROUGH);
	CONSTANT(FUSE_NO_EXPORT_SUPPORT); CONSTANT(FUSE_HAS_RESEND); CONSTANT(FUSE_ALLOW_IDMAP);
	CONSTANT(FUSE_OVER_IO_URING); CONSTANT(FUSE_REQUEST_TIMEOUT);
	printf("];\n");
}

int main(int count, char **words)
{
	const char *kind = count == 2 ? words[1] : "";

	if (strcmp(kind, "numbers") == 0) {
		printf("//! Numbers of FUSE, written by `vectors.c` from the kernel's header.\n");
		constants();
	} else if (strcmp(kind, "requests") == 0) {
		printf("//! Bytes of FUSE requests, written by `vectors.c` from the kernel's header.\n");
		requests();
		printf("\n/// Every request above.\npub(crate) const REQUESTS: &[&[u8]] = &[");
		for (size_t i = 0; i < all_length; i++)
			printf("%s,", all[i]);
		printf("];\n");
	} else if (strcmp(kind, "replies") == 0) {
		printf("//! Bytes of FUSE replies, written by `vectors.c` from the kernel's header.\n");
		replies();
	} else {
		fprintf(stderr, "usage: vectors numbers|requests|replies\n");
		return 2;
	}
	return 0;
}
