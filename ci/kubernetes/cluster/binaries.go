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

// FindOldEtcd returns the etcd in the cache of ci/kubernetes/oldetcd/build; folder is
// that script's.
func FindOldEtcd(ctx context.Context, folder string) (string, error) {
	found, err := built(ctx, folder, "etcd")
	if err != nil {
		return "", err
	}
	return found[0], nil
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
	out, err := exec.CommandContext(ctx, script, "where").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return nil, fmt.Errorf("%s where: %w", script, err)
	}
	for _, name := range names {
		path := filepath.Join(strings.TrimSpace(string(out)), name)
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("%s is not built, run %s: %w", name, script, err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}
