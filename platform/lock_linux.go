// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/linux/host"
)

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
// Neither can be taken without the privilege to program rules here, and both end
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

// lockNamespace implements Lock for the network namespace of the calling thread.
func lockNamespace() (Held, error) {
	for attempt := 1; ; attempt++ {
		held := &namespaceLock{}
		err := held.take()
		if err == nil {
			return held, nil
		}
		if err = errors.Join(err, held.Close()); !errors.Is(err, errTaken) || attempt == lockAttempts {
			return nil, err
		}
		time.Sleep(lockPause)
	}
}

func (h *namespaceLock) take() (err error) {
	name, err := namespaceName()
	if err != nil {
		return err
	}
	folder, err := openFolder()
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
		return errLocked(fmt.Sprintf("its port is that of queue %d in /proc/net/netfilter/nfnetlink_queue, most often its PID", host.LockQueue))
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

// folders are where the lock may be: root's, the session's, the user's own.
func folders() (all []string) {
	if os.Geteuid() == 0 {
		all = append(all, systemFolder)
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		all = append(all, filepath.Join(dir, "tandem"))
	}
	return append(all, filepath.Join(os.TempDir(), "tandem-"+strconv.Itoa(os.Geteuid())))
}

// openFolder returns the first of the folders that is there or can be made, and
// that no other user can write.
func openFolder() (string, error) {
	var errs []error
	for _, dir := range folders() {
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

// dialNamespace connects to the tandem of the calling thread's network namespace.
func dialNamespace(ctx context.Context) (net.Conn, error) {
	name, err := namespaceName()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, dir := range folders() {
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
	link, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return "", err
	}
	return strings.NewReplacer(":[", "-", "]", "").Replace(link), nil
}

// machineSalt returns the number that this machine's tandem mixes into those which users of the
// cluster must not be able to choose: made at the first start after a boot, and kept in the folder
// of the lock, in a file that only its owner can read. With an error it is of this process alone.
func machineSalt() (uint64, error) {
	folder, err := openFolder()
	if err != nil {
		return newSalt(), err
	}
	return saltAt(filepath.Join(folder, "salt"))
}

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
			if salt, err = strconv.ParseUint(string(text), 16, 64); err == nil {
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
