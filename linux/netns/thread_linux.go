// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	vns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Available reports whether this process may make network namespaces, and if
// not, why.
func Available() error {
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return explain(err)
		}
		return nil
	})
}

func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("new network namespace: %w (run as root, or under unshare -Urn)", err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("new network namespace: %w (the kernel has none)", err)
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("new network namespace: %w (the limit user.max_net_namespaces is reached)", err)
	}
	return fmt.Errorf("new network namespace: %w", err)
}

// UserNamespace returns the attributes that start a command as root of a new user
// namespace, where New works. Systems may forbid it; then starting the command fails.
func UserNamespace() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
}

// onThread runs f on a locked operating system thread, which returns to its namespace
// afterwards or, if that fails, ends.
func onThread(f func() error) error {
	runtime.LockOSThread()
	home, err := vns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("this thread's network namespace: %w", err)
	}
	defer func() {
		if vns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		home.Close()
	}()
	return f()
}

// inside runs f on a thread inside a namespace.
func inside(ns vns.NsHandle, f func() error) error {
	return onThread(func() error {
		if err := vns.Set(ns); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return f()
	})
}

// Advise names the setting that prevented a command from starting with UserNamespace,
// if known.
func Advise(err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%w: the limit of namespaces is reached; raise sysctl user.max_user_namespaces and user.max_net_namespaces", err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		for setting, forbids := range map[string]string{
			"kernel.unprivileged_userns_clone":                 "0",
			"kernel.apparmor_restrict_unprivileged_userns":     "1",
			"kernel.apparmor_restrict_unprivileged_unconfined": "1",
		} {
			if sysctlIs(setting, forbids) {
				return fmt.Errorf("%w: sysctl %s is %s", err, setting, forbids)
			}
		}
		return fmt.Errorf("%w: this system, or the container it runs in, forbids user namespaces", err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%w: this kernel has no user namespaces (CONFIG_USER_NS)", err)
	}
	return err
}

func sysctlIs(name, value string) bool {
	b, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
	return err == nil && strings.TrimSpace(string(b)) == value
}
