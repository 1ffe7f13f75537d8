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

// Find returns the programs that the script "build" in a folder, the one of
// ci/kubernetes/upstream, has put into its cache. The error says how to make
// them where they are missing.
func Find(ctx context.Context, upstream string) (Binaries, error) {
	script, err := filepath.Abs(filepath.Join(upstream, "build"))
	if err != nil {
		return Binaries{}, err
	}
	out, err := exec.CommandContext(ctx, script, "where").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return Binaries{}, fmt.Errorf("%s where: %w", script, err)
	}
	dir := strings.TrimSpace(string(out))
	b := Binaries{
		Etcd:      filepath.Join(dir, "etcd"),
		APIServer: filepath.Join(dir, "kube-apiserver"),
		Proxy:     filepath.Join(dir, "kube-proxy"),
	}
	for _, path := range []string{b.Etcd, b.APIServer, b.Proxy} {
		if _, err := os.Stat(path); err != nil {
			return Binaries{}, fmt.Errorf("kube-apiserver and its like are not built, run ci/kubernetes/upstream/build: %w", err)
		}
	}
	return b, nil
}
