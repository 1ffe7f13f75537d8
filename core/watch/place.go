package watch

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// place is where this process finds files and its environment.
type place struct {
	getenv func(string) string
	exists func(string) bool

	connected func([]netip.AddrPort) // as in Hooks
}

// Exposed reports whether anybody on this machine may write a file or folder. On
// Windows the mode of a file does not tell.
func Exposed(name string) bool {
	info, err := os.Stat(name)
	return err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o002 != 0
}

func here() place {
	return place{getenv: os.Getenv, exists: func(name string) bool {
		_, err := os.Stat(name)
		return !errors.Is(err, fs.ErrNotExist)
	}}
}

// sandboxEnv names the folder under which a Windows HostProcess container finds
// its volumes: containerd before 1.7 mounts them there, and not where the pod
// says (KEP-1981).
const sandboxEnv = "CONTAINER_SANDBOX_MOUNT_POINT"

// Path returns where a file that the pod names really is.
func Path(name string) string { return here().path(name) }

// path returns where a file of the pod really is: at its own path, or else
// under the sandbox's mount point.
func (p place) path(name string) string {
	root := p.getenv(sandboxEnv)
	if root == "" || name == "" || p.exists(name) {
		return name
	}
	inside := filepath.Join(root, strings.TrimPrefix(name, filepath.VolumeName(name)))
	if p.exists(inside) {
		return inside
	}
	return name
}
