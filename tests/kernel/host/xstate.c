/* Lets User Mode Linux 6.1 run on processors with AMX.

   User Mode Linux sets the registers of its processes with ptrace(PTRACE_SETREGSET, NT_X86_XSTATE). The host takes
   them only as a whole. Kernel 6.1 has room for 2,696 bytes, which is everything but the tiles of AMX; where the
   processor has tiles, the whole is 11,008 bytes, the host answers EFAULT, and the guest ends as it starts its first
   process. Reading a part is allowed, so only setting needs help: this library is loaded into the guest's kernel
   before libc, and fills the rest with zeros. No information is lost: no process has tiles in use unless it has
   asked its kernel for them, which User Mode Linux does not offer. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

#define NT_X86_XSTATE 0x202

typedef long (*Ptrace)(int, pid_t, void *, void *);

static Ptrace libc_ptrace;
static char whole[1 << 16];
/* Its length on this host; 0 while the host takes what it gets. */
static size_t whole_bytes;

static long set_whole(pid_t pid, void *set, const struct iovec *given) {
  struct iovec all = {whole, whole_bytes};
  if (given->iov_len > whole_bytes) {
    errno = EFAULT;
    return -1;
  }
  memcpy(whole, given->iov_base, given->iov_len);
  return libc_ptrace(PTRACE_SETREGSET, pid, set, &all);
}

static void find_whole_bytes(pid_t pid, void *set) {
  struct iovec all = {whole, sizeof whole};
  if (!libc_ptrace(PTRACE_GETREGSET, pid, set, &all)) whole_bytes = all.iov_len;
  memset(whole, 0, sizeof whole);
}

long ptrace(enum __ptrace_request request, ...) {
  va_list arguments;
  va_start(arguments, request);
  pid_t pid = va_arg(arguments, pid_t);
  void *address = va_arg(arguments, void *);
  void *data = va_arg(arguments, void *);
  va_end(arguments);

  if (!libc_ptrace) libc_ptrace = (Ptrace)dlsym(RTLD_NEXT, "ptrace");
  int is_state = request == PTRACE_SETREGSET && (size_t)address == NT_X86_XSTATE;
  if (!is_state || !whole_bytes) {
    long result = libc_ptrace(request, pid, address, data);
    if (!is_state || !result || errno != EFAULT) return result;
    find_whole_bytes(pid, address);
  }
  return set_whole(pid, address, data);
}
