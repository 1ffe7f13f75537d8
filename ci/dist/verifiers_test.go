// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// verifier runs a program by which users verify, in an empty environment but for a home of its own.
type verifier struct {
	t          *testing.T
	path, home string
}

func (v verifier) run(args ...string) (string, error) {
	cmd := exec.CommandContext(v.t.Context(), v.path, args...)
	cmd.Dir, cmd.Env = v.home, []string{"HOME=" + v.home, "PATH=" + os.Getenv("PATH"), "COSIGN_PASSWORD="}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// takes and refuses run the program, which must succeed, or fail and say why.
func (v verifier) takes(what, say string, args ...string) {
	v.t.Helper()
	if out, err := v.run(args...); err != nil || !strings.Contains(out, say) {
		v.t.Errorf("%s: %v: %s", what, err, out)
	}
}

func (v verifier) refuses(what, say string, args ...string) {
	v.t.Helper()
	if out, err := v.run(args...); err == nil || !strings.Contains(out, say) {
		v.t.Errorf("%s: %v: %s", what, err, out)
	}
}

// changed writes a file with one bit flipped, counted from its end where that is negative.
func changed(t *testing.T, path string, at int) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if at < 0 {
		at += len(text)
	}
	text[at] ^= 1
	to := filepath.Join(t.TempDir(), filepath.Base(path))
	put(t, to, string(text))
	return to
}

// apk verifies a package by the key alone, and installs it; versions 2 and 3 were tried.
func TestRealAPK(t *testing.T) {
	path, err := exec.LookPath("apk")
	if err != nil {
		t.Skipf("Alpine's apk verifies packages, Debian 12 has none: %v", err)
	}
	r := signed(t)
	v := verifier{t, path, t.TempDir()}
	keys, none := t.TempDir(), t.TempDir()
	put(t, filepath.Join(keys, apkKey), string(read(t, r, "packages/"+apkKey)))
	file := filepath.Join(r.out, "packages/tandem_1.2.3-r1_x86_64.apk")
	plain := filepath.Join(unsigned(t, "1.2.3").out, "packages", filepath.Base(file))
	v.takes("signed", "OK", "verify", "--keys-dir", keys, file)
	v.refuses("without the key", "UNTRUSTED", "verify", "--keys-dir", none, file)
	v.refuses("not signed", "UNTRUSTED", "verify", "--keys-dir", keys, plain)
	whole := read(t, r, "packages/"+filepath.Base(file))
	for _, at := range []int{40, len(whole) / 2, -20} {
		v.refuses("changed", "", "verify", "--keys-dir", keys, changed(t, file, at))
	}
	signature, _ := bytes.CutSuffix(whole, read(t, unsigned(t, "1.2.3"), "packages/"+filepath.Base(file)))
	exchanged := filepath.Join(t.TempDir(), "exchanged.apk")
	put(t, exchanged, string(signature)+string(read(t, unsigned(t, "1.2.4"), "packages/tandem_1.2.4-r1_x86_64.apk")))
	v.refuses("another package with its signature", "", "verify", "--keys-dir", keys, exchanged)

	root := t.TempDir()
	put(t, filepath.Join(root, "etc/apk/keys", apkKey), string(read(t, r, "packages/"+apkKey)))
	put(t, filepath.Join(root, "etc/apk/world"), "")
	put(t, filepath.Join(root, "etc/apk/arch"), "x86_64\n")
	put(t, filepath.Join(root, "etc/apk/repositories"), "")
	add := []string{"add", "--root", root, "--initdb", "--no-network", "--no-scripts", "--no-cache"}
	v.refuses("add without a signature", "UNTRUSTED", append(slices.Clone(add), plain)...)
	v.takes("add", "Installing tandem (1.2.3-r1)", append(slices.Clone(add), file)...)
	if program, err := os.ReadFile(filepath.Join(root, "usr/bin/tandem")); err != nil || !slices.Equal(program, read(t, r, "bin/tandem-linux-amd64")) {
		t.Errorf("installs another program: %v", err)
	}
}

// realCosign is the program, of PATH or as ci/setup/cosign builds it.
func realCosign(t *testing.T) verifier {
	t.Helper()
	path, err := exec.LookPath("cosign")
	if err == nil {
		return verifier{t, path, t.TempDir()}
	}
	out, err := exec.CommandContext(t.Context(), "../setup/cosign", "-n").Output()
	if err != nil {
		t.Fatal(err)
	}
	path = strings.TrimSpace(string(out))
	if _, err := os.Stat(path); err != nil {
		t.Skipf("cosign is not installed, ci/setup/cosign builds it in 5 minutes: %v", err)
	}
	return verifier{t, path, t.TempDir()}
}

// cosign verifies the checksums, and an image in a registry that the two layouts were pushed to
// as .github/workflows/release.yml does, by the project's key alone.
func TestRealCosign(t *testing.T) {
	v := realCosign(t)
	r := signed(t)
	key, sig, list := filepath.Join(r.out, sums+".pem"), filepath.Join(r.out, sums+".sig"), filepath.Join(r.out, sums)
	other := filepath.Join(t.TempDir(), "other.pem")
	for _, args := range [][]string{{"genpkey", "-quiet", "-algorithm", "rsa", "-pkeyopt", "rsa_keygen_bits:3072", "-out", other + ".key"}, {"pkey", "-in", other + ".key", "-pubout", "-out", other}} {
		if out, err := exec.CommandContext(t.Context(), "openssl", args...).CombinedOutput(); err != nil {
			t.Fatalf("openssl %v: %v: %s", args, err, out)
		}
	}
	blob := func(key, signature, file string) []string {
		return []string{"verify-blob", "--key", key, "--signature", signature, "--insecure-ignore-tlog", file}
	}
	v.takes("checksums", "Verified OK", blob(key, sig, list)...)
	v.refuses("another key", "verification error", blob(other, sig, list)...)
	v.refuses("changed checksums", "verification error", blob(key, sig, changed(t, list, 3))...)
	v.refuses("another signature", "verification error", blob(key, changed(t, sig, 3), list)...)

	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	image := strings.TrimPrefix(server.URL, "http://") + "/tandem"
	push := func(dir, to string) v1.Hash {
		t.Helper()
		index, err := layout.ImageIndexFromPath(filepath.Join(r.out, dir))
		if err != nil {
			t.Fatal(err)
		}
		m, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		entry := m.Manifests[0]
		ref, err := name.ParseReference(to + ":" + entry.Annotations["org.opencontainers.image.ref.name"])
		if err != nil {
			t.Fatal(err)
		}
		if entry.MediaType.IsIndex() {
			inner, err := index.ImageIndex(entry.Digest)
			if err != nil {
				t.Fatal(err)
			}
			err = remote.WriteIndex(ref, inner, remote.WithContext(t.Context()))
			if err != nil {
				t.Fatal(err)
			}
			return entry.Digest
		}
		inner, err := index.Image(entry.Digest)
		if err == nil {
			err = remote.Write(ref, inner, remote.WithContext(t.Context()))
		}
		if err != nil {
			t.Fatal(err)
		}
		return entry.Digest
	}
	check := func(key, image string) []string {
		return []string{"verify", "--key", key, "--insecure-ignore-tlog=true", "--allow-http-registry", image}
	}
	digest := push("images/tandem", image)
	v.refuses("not signed", "no signatures found", check(key, image+":1.2.3")...)
	push("images/tandem.sig", image)
	v.takes("image", digest.String(), check(key, image+":1.2.3")...)
	v.refuses("another key", "no matching signatures", check(other, image+":1.2.3")...)

	// The workflow signs beside it.
	v.takes("a key of its own", "", "import-key-pair", "--key", other+".key", "--output-key-prefix", "own")
	v.takes("sign", "", append([]string{"sign", "--yes"}, append(workflowSigns(t), "--key", "own.key", "--tlog-upload=false", "--allow-http-registry", image+"@"+digest.String())...)...)
	for _, key := range []string{key, other} {
		v.takes("two signatures", digest.String(), check(key, image+":1.2.3")...)
	}
}

// workflowSigns returns the flags of "cosign sign" in the workflow, but for --yes.
func workflowSigns(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../.github/workflows/release.yml")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`cosign sign --yes ((?:--\S+ )*)"`).FindSubmatch(text)
	if found == nil {
		t.Fatal("the workflow does not sign images")
	}
	return strings.Fields(string(found[1]))
}

// dnf installs from the repository with both of its checks, by the key alone, and takes neither a
// changed list nor a changed rpm.
func TestRealDNF(t *testing.T) {
	path, err := exec.LookPath("dnf")
	if err != nil {
		t.Skipf("dnf is not installed: %v", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("dnf takes root")
	}
	r := signed(t)
	v := verifier{t, path, t.TempDir()}
	install := func(packages string) []string {
		root := t.TempDir()
		put(t, filepath.Join(root, "repos/tandem.repo"), "[tandem]\nname=tandem\nbaseurl=file://"+packages+"\ngpgcheck=1\nrepo_gpgcheck=1\ngpgkey=file://"+r.out+"/packages/tandem.asc\n")
		return []string{
			"--assumeyes", "--noplugins", "--installroot=" + root + "/root", "--releasever=9", "--forcearch=x86_64", "--setopt=reposdir=" + root + "/repos",
			"--setopt=cachedir=" + root + "/cache", "--setopt=tsflags=noscripts", "install", "tandem",
		}
	}
	packages := filepath.Join(r.out, "packages")
	v.takes("install", "Installed:\n  tandem-1.2.3-1.x86_64", install(packages)...)
	for name, say := range map[string]string{"repodata/repomd.xml": "repomd.xml GPG signature verification error", "tandem-1.2.3-1.x86_64.rpm": "checksum"} {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(packages)); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(changed(t, filepath.Join(packages, name), -40), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		v.refuses("changed "+name, say, install(dir)...)
	}
}
