// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Advise names the setting that kept a command from being started with
// UserNamespace, as far as it can be told.
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
