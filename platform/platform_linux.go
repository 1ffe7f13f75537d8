// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/linux/conntrack"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/ipvs"
	"github.com/tandem-proxy/tandem/linux/nft"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// netAdmin means that this process may not program its network namespace. The kernel
// checks the capability, not the user.
func netAdmin() (lacks string) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil || sets[0].Effective&(1<<unix.CAP_NET_ADMIN) != 0 {
		return "" // unknown: the modes find out
	}
	return "CAP_NET_ADMIN"
}

func thisSystem() system {
	s := portable()
	s.privileged = netAdmin
	s.keepIn(userFolders())
	s.network = func() (network, error) { return host.OpenNamespace() }
	s.addresses = func() (addresses, error) { return host.OpenAddresses(host.Dummies) }
	s.listeners = func() (Listening, error) { return host.OpenListeners() }
	s.observe = func() (tracked, error) { return conntrack.Follow() }
	s.flows = func() (flowTable, error) { return conntrack.Open() }
	s.account = conntrack.Account
	s.live = followLive
	s.watch = watchKernel
	s.writers = openWriters
	s.listFlows = func() flowLister { return conntrack.NewReader() }
	s.facts = linuxFacts
	s.parameters = setParameters
	s.usage = usage
	s.limitMemory = limitMemoryToCgroup
	s.releaseText = releaseMappedText
	s.handover = func(log *slog.Logger) func() relay.Handover { return host.OpenHandover(log).User }
	return s
}

// OpenIn is Open for a proxy of a network of the caller's own: what others keep in /run/tandem, it keeps in a folder
// that only this user can write.
func OpenIn(ctx context.Context, folder string, c *config.Config, version string, log *slog.Logger) (*Proxy, error) {
	s := thisSystem()
	s.keepIn(folders{folder})
	return s.open(ctx, c, version, log)
}

// keepIn says where there are lock, control socket and salt.
func (s *system) keepIn(f folders) {
	s.lock, s.dialControl, s.salt, s.knownSalt = f.lock, f.dial, f.salt, f.knownSalt
}

// setParameters sets the kernel parameters that a configuration asks for.
func setParameters(c *config.Config, log *slog.Logger) []error {
	failed := host.Prepare("/", c, log)
	if c.Mode == ipvs.Name {
		if err := ipvs.Prepare(c, log); err != nil {
			failed = append(failed, err)
		}
	}
	return failed
}

// openWriters records the processes that write to nf_tables: the rules of nftables and of
// iptables-nft.
func openWriters() (writers, error) {
	w, err := nft.OpenWriters()
	if err != nil {
		return nil, err
	}
	return w, nil
}

// systemFolder is where root's lock and control socket are. Pods share it with
// the host as a hostPath volume; /run is emptied at boot.
const systemFolder = "/run/tandem"

// namespaceLock is the lock of a network namespace. It has two parts, and a process
// must get both where it can:
//
//   - a file, locked with flock(2), in a folder that only its owner can write.
//     It excludes processes that share the folder, privileged or not;
//   - a claim on the network namespace itself (host.Lock), which excludes
//     privileged ones that do not share it, such as a pod and the host.
//
// The claim takes the privilege to program rules here; both end
// with the process.
type namespaceLock struct {
	claim     io.Closer // nil where none can be made
	file      *os.File  // nil where there is no folder
	socket    string    // the path of the control socket
	folderErr error     // why there is no folder
}

// How often a lock that another process has is tried, and the pause between: about a second.
// A tandem that was killed may have left a child between fork(2) and execve(2), which has its
// descriptors for a moment longer. Attempts are counted, as on a machine that stands still
// no process runs.
const (
	lockAttempts = 50
	lockPause    = 20 * time.Millisecond
)

// lock implements Lock for the network namespace of the calling thread.
func (f folders) lock() (Held, error) {
	for attempt := 1; ; attempt++ {
		held := &namespaceLock{}
		err := held.take(f)
		if err == nil {
			return held, nil
		}
		if err = errors.Join(err, held.Close()); !errors.Is(err, errTaken) || attempt == lockAttempts {
			return nil, err
		}
		time.Sleep(lockPause)
	}
}

func (h *namespaceLock) take(in folders) (err error) {
	name, err := namespaceName()
	if err != nil {
		return err
	}
	folder, err := in.open()
	path := filepath.Join(folder, name)
	if err == nil {
		h.file, err = lockFile(path + ".lock")
	}
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return errLocked("fuser " + path + ".lock shows its process")
	case err != nil: // a read-only root, or SELinux: the claim is enough
		h.folderErr = fmt.Errorf("no folder for the control socket: %w", err)
	default:
		h.socket = path + ".sock"
	}
	h.claim, err = host.Lock()
	switch {
	case errors.Is(err, host.ErrLocked):
		return errLocked(fmt.Sprintf("holder's PID: see queue %d in /proc/net/netfilter/nfnetlink_queue", host.LockQueue))
	case err != nil && h.file == nil:
		return fmt.Errorf("lock of this network namespace: %w; %w; set XDG_RUNTIME_DIR to a folder of your own", h.folderErr, err)
	}
	return nil
}

var errTaken = errors.New("another tandem runs in this network namespace; stop that one first")

func errLocked(how string) error { return fmt.Errorf("%w (%s)", errTaken, how) }

// Close releases the lock. Its file may have been removed, or be another's by now:
// then it is kept.
func (h *namespaceLock) Close() error {
	var errs []error
	if h.claim != nil {
		errs = append(errs, h.claim.Close())
	}
	if h.file != nil {
		if linked(h.file) {
			errs = append(errs, os.Remove(h.file.Name()))
		}
		errs = append(errs, h.file.Close())
	}
	return errors.Join(errs...)
}

// lockFile makes and locks a file. unix.EWOULDBLOCK: another process holds it.
func lockFile(path string) (*os.File, error) {
	for range 100 { // its holder removes it before releasing it
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if linked(f) {
			return f, nil
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s: removed repeatedly by other programs", path)
}

// linked reports whether a file is still what its path leads to.
func linked(f *os.File) bool {
	mine, err1 := f.Stat()
	named, err2 := os.Lstat(f.Name())
	return err1 == nil && err2 == nil && os.SameFile(mine, named)
}

// folders are where a lock, its control socket and the salt may be.
type folders []string

// userFolders are those of this process' user: root's, the session's, the user's own.
func userFolders() (all folders) {
	if os.Geteuid() == 0 {
		all = append(all, systemFolder)
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		all = append(all, filepath.Join(dir, "tandem"))
	}
	return append(all, filepath.Join(os.TempDir(), "tandem-"+strconv.Itoa(os.Geteuid())))
}

// open returns the first of the folders that is there or can be made, and
// that no other user can write.
func (f folders) open() (string, error) {
	var errs []error
	for _, dir := range f {
		err := os.Mkdir(dir, 0o700)
		if err == nil || errors.Is(err, fs.ErrExist) {
			err = private(dir)
		}
		if err == nil {
			return dir, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// private returns an error unless a folder is the caller's and only writable by
// it. Others may read it: the kubelet makes such folders.
func private(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s: it must be a folder that only this user can write", dir)
	}
	return unix.Access(dir, unix.W_OK)
}

// Listen implements Held. Only the user of this process, and root, can connect,
// and only where the folder can be seen.
func (h *namespaceLock) Listen() (net.Listener, error) {
	if h.socket == "" {
		return nil, h.folderErr
	}
	if err := os.Remove(h.socket); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by a process that was killed
		return nil, err
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err) // before it is bound
	}}
	return config.Listen(context.Background(), "unix", h.socket)
}

// dial connects to the tandem of the calling thread's network namespace.
func (f folders) dial(ctx context.Context) (net.Conn, error) {
	name, err := namespaceName()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, dir := range f {
		if err := private(dir); err != nil { // another user may be listening there
			errs = append(errs, err)
			continue
		}
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", filepath.Join(dir, name+".sock"))
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// namespaceName is the network namespace of the calling thread in the name of a
// file, such as net-4026531840. The number is the same in every mount and PID
// namespace.
func namespaceName() (string, error) {
	link, err := os.Readlink(host.OwnNamespace)
	if err != nil {
		return "", err
	}
	return strings.NewReplacer(":[", "-", "]", "").Replace(link), nil
}

// usage reads what this process has used, and its resident memory.
func usage() (u history.Usage) {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err == nil {
		u.CPU = time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	text, err := os.ReadFile("/proc/self/statm") // pages: size, resident, ...
	if fields := strings.Fields(string(text)); err == nil && len(fields) > 1 {
		pages, _ := strconv.ParseUint(fields[1], 10, 64) // 0 is unknown
		u.Memory = pages * uint64(os.Getpagesize())
	}
	return u
}

// limitMemoryToCgroup has the garbage collector work harder when this process comes
// near the limit of its cgroup, before the kernel throttles or kills it. GOMEMLIMIT
// in the environment takes precedence.
func limitMemoryToCgroup(log *slog.Logger) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	if limit := cgroupMemory(os.ReadFile); limit < math.MaxInt64 {
		debug.SetMemoryLimit(limit / 10 * 9)
		log.Debug("memory limit set from the cgroup", "cgroup", limit, "limit", limit/10*9)
	}
}

// cgroupMemory returns how many bytes the cgroup of this process may have, those
// around it included; math.MaxInt64 when there is no limit. In a container the
// process's own path may lead nowhere, and the root is its own cgroup.
func cgroupMemory(read func(string) ([]byte, error)) int64 {
	limit := int64(math.MaxInt64)
	apply := func(file string) {
		text, err := read(file)
		if err != nil {
			return // another version of cgroups, or none
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 { // else "max"
			limit = min(limit, n)
		}
	}
	own, _ := read("/proc/self/cgroup") // empty without cgroups
	for line := range strings.Lines(string(own)) {
		_, controllers, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, at, _ := strings.Cut(controllers, ":")
		root, files := "/sys/fs/cgroup", []string{"memory.high", "memory.max"}
		switch controllers {
		case "": // version 2
		case "memory":
			root, files = "/sys/fs/cgroup/memory", []string{"memory.limit_in_bytes"}
		default:
			continue
		}
		for at = path.Clean("/" + at); ; at = path.Dir(at) {
			for _, file := range files {
				apply(path.Join(root, at, file))
			}
			if at == "/" {
				break
			}
		}
	}
	return limit
}

// releaseMappedText releases the pages of the program itself, which the kernel maps
// in again from the file on use: most were needed by the start alone.
func releaseMappedText() error {
	file, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return err
	}
	spans, err := unmodified(smaps, file)
	err = errors.Join(err, smaps.Close())
	for _, s := range spans {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, s.from, s.to-s.from, unix.MADV_DONTNEED); errno != 0 {
			err = errors.Join(err, os.NewSyscallError("madvise", errno))
		}
	}
	return err
}

// span is a part of the address space.
type span struct{ from, to uintptr }

// unmodified returns the mappings of a file that smaps, as in proc(5), shows to be
// as the file is: read only, without a page that was written before it became so,
// as the loader does with addresses that it has to adjust.
func unmodified(smaps io.Reader, file string) ([]span, error) {
	var spans []span
	var now span // zero in mappings that are of no interest
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		line := lines.Text()
		if s, header := mapping(line, file); header {
			now = s
			continue
		}
		if count, is := strings.CutPrefix(line, "Anonymous:"); is && now != (span{}) && strings.TrimSpace(count) == "0 kB" {
			spans = append(spans, now)
		}
	}
	return spans, lines.Err()
}

// mapping reads the line that a mapping begins with: "from-to perms offset device
// inode path". The span is zero unless it is one of the file, and not writable.
func mapping(line, file string) (s span, header bool) {
	f := strings.Fields(line)
	if len(f) < 5 || strings.HasSuffix(f[0], ":") {
		return span{}, false
	}
	from, to, ok := strings.Cut(f[0], "-")
	a, err1 := strconv.ParseUint(from, 16, 64)
	b, err2 := strconv.ParseUint(to, 16, 64)
	if !ok || err1 != nil || err2 != nil {
		return span{}, false
	}
	if len(f) != 6 || f[5] != file || len(f[1]) != 4 || f[1][0] != 'r' || f[1][1] == 'w' || f[1][3] != 'p' || a >= b {
		return span{}, true
	}
	return span{uintptr(a), uintptr(b)}, true
}

// factsLimit is how long reading other programs' rules may take.
const factsLimit = 10 * time.Second

// linuxFacts reads the input of doctor's checks.
func linuxFacts(ctx context.Context, c *config.Config) *diagnosis.Facts {
	ctx, cancel := context.WithTimeout(ctx, factsLimit)
	defer cancel()
	f := host.Facts()
	f.BaseChains, _ = nft.BaseChains(ctx) // not there: no nftables in this kernel
	f.Flowtables, _ = nft.Flowtables(ctx)
	for _, chain := range f.BaseChains {
		if (chain.Family == "ip" || chain.Family == "ip6") && (chain.Name == "PREROUTING" || chain.Name == "INPUT") {
			f.NFTTables = append(f.NFTTables, chain.Family+" "+chain.Table)
		}
	}
	xtables.AddFacts(ctx, f)
	f.Modules = host.ModuleFacts(modulesOf(c.Mode)...)
	f.Memory, f.OOMKills = cgroupUsage()
	return f
}

// modulesOf are the modules that a mode needs, besides those that they load.
func modulesOf(m config.Mode) []string {
	names := []string{"nf_conntrack", "nf_nat"}
	switch m {
	case "nftables":
		names = append(names, "nf_tables", "nft_chain_nat")
	case "ipvs":
		names = append(names, "ip_vs", "ip_vs_rr", "ip_set", "dummy")
	}
	return names
}

// cgroupUsage returns the memory of this process's cgroup, and how many processes
// were killed in it. Only version 2 has both.
func cgroupUsage() (u diagnosis.Usage, kills int) {
	const unlimited = 1 << 60 // version 1 has a number near the largest instead
	if limit := cgroupMemory(os.ReadFile); limit < unlimited {
		u.Limit = uint64(limit)
	}
	own, _ := os.ReadFile("/proc/self/cgroup")
	_, at, found := strings.Cut(strings.TrimSpace(string(own)), "0::")
	if !found {
		return u, 0
	}
	dir := path.Join("/sys/fs/cgroup", path.Clean("/"+at))
	text, _ := os.ReadFile(path.Join(dir, "memory.current"))
	u.Used, _ = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	events, _ := os.ReadFile(path.Join(dir, "memory.events"))
	for line := range strings.Lines(string(events)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			kills, _ = strconv.Atoi(n)
		}
	}
	return u, kills
}

// salt returns the number that this machine's tandem mixes into those which users of the
// cluster must not be able to choose: made at the first start after a boot, and kept in the folder
// of the lock, in a file that only its owner can read. With an error it is of this process alone.
func (f folders) salt() (uint64, error) {
	folder, err := f.open()
	if err != nil {
		return newSalt(), err
	}
	return saltAt(filepath.Join(folder, saltFile))
}

// knownSalt is that number where it was made; 0 where it was not, or is not this user's to read.
func (f folders) knownSalt() uint64 {
	for _, dir := range f {
		if private(dir) != nil { // another user may have written it
			continue
		}
		if text, err := os.ReadFile(filepath.Join(dir, saltFile)); err == nil {
			salt, _ := parseSalt(text)
			return salt
		}
	}
	return 0
}

const saltFile = "salt"

func parseSalt(text []byte) (uint64, error) { return strconv.ParseUint(string(text), 16, 64) }

func newSalt() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:])
}

// saltAt reads the number in a file, or makes both.
func saltAt(path string) (salt uint64, err error) {
	for range 3 {
		text, err := os.ReadFile(path)
		if err == nil {
			if salt, err = parseSalt(text); err == nil {
				return salt, nil
			}
			err = os.Remove(path) // the machine stopped while it was written
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return newSalt(), err
		}
		made, err := os.CreateTemp(filepath.Dir(path), "salt-") // with mode 0600
		if err != nil {
			return newSalt(), err
		}
		salt = newSalt()
		_, err = fmt.Fprintf(made, "%016x", salt)
		if err = errors.Join(err, made.Close()); err == nil {
			err = os.Link(made.Name(), path) // not if the tandem of another network namespace was faster
		}
		gone := os.Remove(made.Name())
		if err == nil || !errors.Is(err, fs.ErrExist) {
			return salt, errors.Join(err, gone)
		}
	}
	return newSalt(), fmt.Errorf("%s: changed repeatedly by other programs", path)
}
