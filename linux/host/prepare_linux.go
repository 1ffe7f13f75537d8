// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/tandem-proxy/tandem/core/config"
)

// Prepare sets what a node needs besides rules: connection tracking, and how
// willing the kernel is to kill this process. What cannot be set is returned, each
// with what to do by hand: nothing of it keeps Services from being served. What is
// set is logged. Root is "/" but in tests.
//
// The sysctls are those of the calling thread's network namespace. Some of them
// exist only once connection tracking is in use.
func Prepare(root string, c *config.Config, log *slog.Logger) (failed []error) {
	for _, s := range settings(root, c) {
		changed, err := s.apply(root)
		switch {
		case err != nil && s.Path == oomScore && errors.Is(err, fs.ErrPermission):
			log.Info("oom_score_adj unchanged", "err", err) // usual in containers; kube-proxy logs it at --v=2
		case err != nil:
			failed = append(failed, err)
		case changed:
			log.Info("kernel setting changed", "setting", s.name(), "value", s.Want)
		}
	}
	return failed
}

const oomScore = "proc/self/oom_score_adj"

func settings(root string, c *config.Config) []Setting {
	all := Conntrack(c.Conntrack, cpus(root))
	if c.OOMScoreAdj != nil {
		all = append(all, Setting{Path: oomScore, Want: *c.OOMScoreAdj})
	}
	return all
}

// cpus counts the machine's CPUs. The runtime knows only those that this
// process may use, which says nothing about the node: kubernetes issue 99225.
func cpus(root string) int {
	b, err := os.ReadFile(filepath.Join(root, "sys/devices/system/cpu/online"))
	if err != nil {
		return runtime.NumCPU()
	}
	n, err := countCPUs(string(b))
	if err != nil {
		return runtime.NumCPU()
	}
	return n
}

// apply writes a setting unless it fits already.
func (s Setting) apply(root string) (changed bool, err error) {
	file := filepath.Join(root, s.Path)
	b, err := os.ReadFile(file)
	if err != nil {
		return false, s.explain(err)
	}
	if ok, err := s.fits(string(b)); ok || err != nil {
		return false, err
	}
	// Without O_CREATE: a file that is not there is not ours to make.
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		_, err = f.WriteString(strconv.Itoa(s.Want))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return false, fmt.Errorf("it is %s: %w", strings.TrimSpace(string(b)), s.explain(err))
	}
	return true, nil
}

// explain says what shall be, why it cannot be set here, and how to do it.
func (s Setting) explain(err error) error {
	why := "it cannot be set"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		why = "this kernel does not have it, or connection tracking is not loaded"
	case errors.Is(err, syscall.EROFS):
		why = "it is read-only here"
	case errors.Is(err, fs.ErrPermission):
		why = "this process may not set it"
	case errors.Is(err, syscall.EOPNOTSUPP):
		why = "only the machine's first network namespace may set it"
	}
	return fmt.Errorf("%s: %s (%w); on the host: %s", s, why, err, s.fix())
}
