// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Binaries are the paths of the upstream programs.
type Binaries struct {
	Etcd, APIServer, Proxy string
}

// Find returns the programs in the cache of ci/kubernetes/upstream/build; folder is
// that script's. If they are missing the error states how to build them.
func Find(ctx context.Context, upstream string) (Binaries, error) {
	found, err := built(ctx, upstream, "etcd", "kube-apiserver", "kube-proxy")
	if err != nil {
		return Binaries{}, err
	}
	return Binaries{Etcd: found[0], APIServer: found[1], Proxy: found[2]}, nil
}

// FindOldEtcd returns the etcd 3.5.7 in the cache of ci/kubernetes/oldetcd/build; folder
// is that script's.
func FindOldEtcd(ctx context.Context, folder string) (string, error) {
	found, err := built(ctx, folder, "etcd")
	if err != nil {
		return "", err
	}
	return found[0], nil
}

// FindPackaged returns a program of a Debian package, which the script ci/setup/unpack
// unpacks unless that was done; a version of the package begins with version.
func FindPackaged(ctx context.Context, script, pkg, version, path string) (string, error) {
	out, err := output(ctx, script, pkg, version)
	if err != nil {
		return "", err
	}
	path = filepath.Join(out, path)
	_, err = os.Stat(path)
	return path, err
}

// FindControllers returns the program in the cache of
// ci/kubernetes/upstream/controllers/build; folder is that script's.
func FindControllers(ctx context.Context, folder string) (string, error) {
	found, err := built(ctx, folder, "controllers")
	if err != nil {
		return "", err
	}
	return found[0], nil
}

// built returns programs in the cache of a folder's script "build".
func built(ctx context.Context, folder string, names ...string) (paths []string, err error) {
	script, err := filepath.Abs(filepath.Join(folder, "build"))
	if err != nil {
		return nil, err
	}
	folder, err = output(ctx, script, "where")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		path := filepath.Join(folder, name)
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("%s is not built, run %s: %w", name, script, err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// output returns what a script prints, and its messages in the error.
func output(ctx context.Context, script string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, script, args...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return "", fmt.Errorf("%s %s: %w", script, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
