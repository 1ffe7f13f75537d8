// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Prepare sets the parameters that a node needs besides rules (settings): of the kernel, and this
// process' OOM score; those of mode ipvs alone are in linux/ipvs (applySysctls). It logs what it changes
// and returns what it could not change, each with the command to do it manually; none of that keeps
// Services from being served. root is "/" except in tests.
//
// The sysctls are those of the calling thread's network namespace. Some of them
// exist only once connection tracking is in use.
func Prepare(root string, c *config.Config, log *slog.Logger) (failed []error) {
	for _, s := range settings(root, c) {
		switch err := s.Apply(root, log); {
		case err != nil && s.Path == oomScore && errors.Is(err, fs.ErrPermission):
			log.Info("oom_score_adj unchanged", "err", err) // usual in containers; kube-proxy logs it at --v=2
		case err != nil:
			failed = append(failed, err)
		}
	}
	return failed
}

const oomScore = "proc/self/oom_score_adj"

func settings(root string, c *config.Config) []Setting {
	// The Go runtime counts only the CPUs that this process may use (kubernetes issue 99225).
	all := Conntrack(c.Conntrack, cpusIn(filepath.Join(root, "sys/devices/system/cpu/online"), runtime.NumCPU()))
	if c.OOMScoreAdj != nil {
		all = append(all, Setting{Path: oomScore, Want: *c.OOMScoreAdj})
	}
	return all
}

// cpusIn counts the CPUs that a file lists; otherwise is for one that cannot be read.
func cpusIn(file string, otherwise int) int {
	b, err := os.ReadFile(file)
	if err != nil {
		return otherwise
	}
	n, err := countCPUs(string(b))
	if err != nil {
		return otherwise
	}
	return n
}

// Apply sets a kernel parameter unless its value is good enough, and logs a change. The error
// states what to do by hand. The file is below root, and of the calling thread's network
// namespace.
func (s Setting) Apply(root string, log *slog.Logger) error {
	return s.write(root, os.O_TRUNC, func(f *os.File) error {
		_, err := f.WriteString(strconv.Itoa(s.Want))
		if err == nil {
			log.Info("kernel setting changed", "setting", s.name(), "value", s.Want)
		}
		return err
	})
}

// Check returns the error that Apply would, and changes nothing: where the file is
// read-only, it cannot be opened.
func (s Setting) Check(root string) error {
	return s.write(root, 0, func(*os.File) error { return nil })
}

// write opens the file for fill to write, unless its value is good enough.
func (s Setting) write(root string, flag int, fill func(*os.File) error) error {
	file := filepath.Join(root, s.Path)
	b, err := os.ReadFile(file)
	if err != nil {
		return s.explain(err)
	}
	if ok, err := s.fits(string(b)); ok || err != nil {
		return err
	}
	// Without O_CREATE: a missing file means a missing kernel feature.
	f, err := os.OpenFile(file, os.O_WRONLY|flag, 0)
	if err == nil {
		err = errors.Join(fill(f), f.Close())
	}
	if err != nil {
		return fmt.Errorf("it is %s: %w", strings.TrimSpace(string(b)), s.explain(err))
	}
	return nil
}

// explain names the wanted value, why it cannot be set here, and the command that
// sets it.
func (s Setting) explain(err error) error {
	return fmt.Errorf("%s: %s (%w); on the host: %s", s, cause(err), err, s.fix())
}

// cause states why a kernel parameter cannot be read or set.
func cause(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "this kernel does not have it, or its module (connection tracking, IPVS) is not loaded"
	case errors.Is(err, syscall.EROFS):
		return "it is read-only here"
	case errors.Is(err, fs.ErrPermission):
		return "this process has no permission"
	case errors.Is(err, syscall.EOPNOTSUPP):
		return "only the machine's first network namespace may set it"
	}
	return "it cannot be read or set"
}

// Sysctl returns a kernel parameter by its name with slashes, such as
// "net/ipv4/ip_forward".
func Sysctl(name string) (string, error) {
	b, err := os.ReadFile(path(name))
	if err != nil {
		return "", fmt.Errorf("sysctl %s: %s: %w", strings.ReplaceAll(name, "/", "."), cause(err), err)
	}
	return strings.TrimSpace(string(b)), nil
}

func path(name string) string { return filepath.Join("/proc/sys", name) }

const liberal = "net/netfilter/nf_conntrack_tcp_be_liberal"

// Liberal is the kernel parameter by which connection tracking takes TCP packets outside of
// the window for valid, of the network namespace that it was opened in. Rules need not drop
// those that it finds invalid then; as kube-proxy's, they are chosen by it once, at the start.
type Liberal struct{ file *os.File }

// RelyOnLiberal returns the parameter if it is on, or is to be set; else nil: then rules drop
// such packets.
func RelyOnLiberal(asked bool) *Liberal {
	l := &Liberal{}
	if f, err := os.Open(path(liberal)); err == nil {
		l.file = f
	}
	if asked || l.On() {
		return l
	}
	_ = l.Close() // opened only to read the value
	return nil
}

// On reports whether it is on now. It is read by any thread in the namespace that it was
// opened in, as its file belongs to that.
func (l *Liberal) On() bool {
	var b [1]byte
	if l.file == nil {
		return false
	}
	n, _ := l.file.ReadAt(b[:], 0)
	return n == 1 && b[0] != '0'
}

// Lost reports that the sysctl was on, or was to be set, at the start and is off now: the
// rules then lack the drop of invalid packets. Nil reports nothing.
func (l *Liberal) Lost() []model.Problem {
	if l == nil || l.On() {
		return nil
	}
	return []model.Problem{{
		Object: "data plane", Why: model.WhyDegraded,
		Detail: "sysctl net.netfilter.nf_conntrack_tcp_be_liberal was on at the start and is off now: answers of endpoints that are outside of the TCP window reset connections; " +
			"set it to 1, or restart tandem, whose rules then drop such packets",
	}}
}

// Close ends what keeps the sysctl readable.
func (l *Liberal) Close() error {
	if l == nil || l.file == nil {
		return nil
	}
	return l.file.Close()
}

// CheckIPv6 returns dataplane.ErrAbsent where the kernel has no IPv6, as with
// ipv6.disable=1. Its filters may take rules for IPv6 then, too, for packets that never come.
func CheckIPv6() error {
	_, err := os.Stat("/proc/sys/net/ipv6")
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: IPv6 is off in this kernel (ipv6.disable=1)", dataplane.ErrAbsent)
	}
	return err
}

// Undecided adds dataplane.ErrUndecided to the error of a probe that does not mean that
// something is missing: the kernel, or another program, was busy or did not answer.
func Undecided(err error) error {
	transient := []error{
		context.DeadlineExceeded, ErrLocked, netlink.ErrNoAnswer, netlink.ErrInterrupted, dataplane.ErrInterrupted,
		unix.EAGAIN, unix.EBUSY, unix.EINTR, unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ETIMEDOUT,
	}
	if errors.Is(err, dataplane.ErrUndecided) || !slices.ContainsFunc(transient, func(t error) bool { return errors.Is(err, t) }) {
		return err
	}
	return fmt.Errorf("%w; %w", err, dataplane.ErrUndecided)
}
