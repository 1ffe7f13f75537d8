// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// extract unpacks the image for this machine into a folder.
func extract(t *testing.T, r release, image string) string {
	t.Helper()
	idx := index(t, r, image)
	m, err := idx.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range m.Manifests {
		if !d.Platform.Equals(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}) {
			continue
		}
		img, err := idx.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		files := mutate.Extract(img)
		defer files.Close()
		dir := t.TempDir()
		write(t, tar.NewReader(files), dir)
		return dir
	}
	t.Skipf("no image for %s", runtime.GOARCH)
	return ""
}

func write(t *testing.T, in *tar.Reader, dir string) {
	t.Helper()
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, h.Name)
		var b []byte
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(to, 0o755)
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, to)
		default:
			if b, err = io.ReadAll(in); err == nil {
				err = os.WriteFile(to, b, h.FileInfo().Mode())
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// inside runs a command in an unpacked image, in namespaces of its own.
func inside(t *testing.T, root string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "--net", "--pid", "--fork", "--kill-child", "chroot", root}, args...)...)
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// The images work unmodified: the program under both names, iptables, and a
// proxy that programs a Service.
func TestImagesRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("chroot takes root")
	}
	r := built(t)
	for image, mode := range map[string]string{"tandem": "nftables", "tandem-iptables": "iptables"} {
		t.Run(image, func(t *testing.T) {
			root := extract(t, r, image)
			for program, version := range map[string]string{"/" + linuxProgram: "1.2.3+4.gabcdef0", "/" + linuxLink: "Kubernetes v1.37.2+tandem.1.2.3-4.gabcdef0"} {
				if out, err := inside(t, root, program, "--version"); err != nil || out != version+"\n" {
					t.Errorf("%s: %v: %s", program, err, out)
				}
			}
			if mode == "iptables" {
				for _, name := range append(names, "iptables-legacy", "ip6tables-legacy") {
					if out, err := inside(t, root, "/usr/sbin/"+name, "--version"); err != nil {
						t.Errorf("%s: %v: %s", name, err, out)
					}
				}
			}
			serve(t, root, mode)
		})
	}
}

// serve runs the proxy of an image until it reports ready.
func serve(t *testing.T, root, mode string) {
	t.Helper()
	manifest, err := os.ReadFile("../manifests/nginx.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "services")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Mkdir(filepath.Join(root, "proc"), 0o755), os.Mkdir(filepath.Join(root, "dev"), 0o755), os.Mkdir(filepath.Join(root, "run"), 0o755),
		os.WriteFile(filepath.Join(root, "dev", "null"), nil, 0o644), os.WriteFile(filepath.Join(dir, "nginx.yaml"), manifest, 0o644)); err != nil {
		t.Fatal(err)
	}
	// Under the name and with the flags that kubeadm gives kube-proxy.
	script := `mount -t proc proc "$0/proc" && mount --bind /dev/null "$0/dev/null" && ip link set lo up && exec chroot "$0" /` + linuxLink + ` --hostname-override=node-1 --manifests=/services --proxy-mode=` + mode
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", script, root)
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	defer func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Log(said.String())
		}
	}()
	for range 100 {
		time.Sleep(100 * time.Millisecond)
		out, err := exec.CommandContext(t.Context(), "nsenter", "--target", child(t, cmd.Process.Pid), "--net", "--mount", "--pid", "chroot", root, "/"+linuxProgram, "status").CombinedOutput()
		if err == nil && strings.Contains(string(out), "nginx") && strings.Contains(string(out), mode) {
			return
		}
	}
	t.Error("not ready in ten seconds")
}

// child returns the first child of a process.
func child(t *testing.T, pid int) string {
	t.Helper()
	found, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		if b, err := os.ReadFile(path); err == nil && len(bytes.TrimSpace(b)) > 0 {
			return strings.Fields(string(b))[0]
		}
	}
	return "0"
}
