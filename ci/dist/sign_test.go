// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// With a key in the environment the checksums are signed as openssl verifies it, and a
// changed file does not pass.
func TestSign(t *testing.T) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(signingKey, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	r := release{out: t.TempDir()}
	file := filepath.Join(r.out, "tandem")
	if err := os.WriteFile(file, []byte("program"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.checksums(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.sign(t.Context()); err != nil {
		t.Fatal(err)
	}
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(r.out, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if !ed25519.Verify(key.Public().(ed25519.PublicKey), read(sums), read(sums+".sig")) {
		t.Error("the signature does not verify")
	}
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Log("no openssl to verify with")
		return
	}
	verify := func() error {
		cmd := exec.CommandContext(t.Context(), "openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", sums+".pem", "-in", sums, "-sigfile", sums+".sig")
		cmd.Dir = r.out
		return cmd.Run()
	}
	if err := verify(); err != nil {
		t.Errorf("openssl: %v", err)
	}
	if err := os.WriteFile(filepath.Join(r.out, sums), append(read(sums), ' '), 0o600); err != nil {
		t.Fatal(err)
	}
	if verify() == nil {
		t.Error("openssl takes changed checksums")
	}
}

// The provenance names each file with its checksum, and the commit.
func TestProvenance(t *testing.T) {
	r := release{out: t.TempDir(), version: "1.2.3", commit: "c0ffee", when: time.Unix(1_800_000_000, 0)}
	for _, name := range []string{"one", "two"} {
		if err := os.WriteFile(filepath.Join(r.out, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.provenance(t.Context()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(r.out, provenanceFile))
	if err != nil {
		t.Fatal(err)
	}
	var s statement
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"one", "two"} {
		if len(s.Subject) != 2 || s.Subject[i].Name != name || s.Subject[i].Digest["sha256"] != fmt.Sprintf("%x", sha256.Sum256([]byte(name))) {
			t.Fatalf("subjects are %+v", s.Subject)
		}
	}
	build := s.Predicate.BuildDefinition
	if s.PredicateType != "https://slsa.dev/provenance/v1" || build.ExternalParameters["version"] != "1.2.3" ||
		len(build.ResolvedDependencies) != 1 || build.ResolvedDependencies[0].Digest["gitCommit"] != "c0ffee" {
		t.Errorf("%s", text)
	}
	if err := r.checksums(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all, err := os.ReadFile(filepath.Join(r.out, sums)); err != nil || !strings.Contains(string(all), "  "+provenanceFile+"\n") {
		t.Errorf("not in the checksums: %v, %s", err, all)
	}
}

// ci/dist/verify takes a release as it was signed, whole or some files of it in one folder,
// and finds whatever else has become of it, with the project's key alone.
func TestVerify(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip(err)
	}
	keys := t.TempDir()
	made := func(name string) (public string) {
		t.Helper()
		public = filepath.Join(keys, name+".pub")
		for _, args := range [][]string{{"genpkey", "-algorithm", "ed25519", "-out", public + ".key"}, {"pkey", "-in", public + ".key", "-pubout", "-out", public}} {
			if out, err := exec.CommandContext(t.Context(), "openssl", args...).CombinedOutput(); err != nil {
				t.Fatalf("openssl %v: %v: %s", args, err, out)
			}
		}
		return public
	}
	ours, others := made("ours"), made("others")
	write := func(dir, name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	sign := func(dir, key string) {
		t.Helper()
		text, err := os.ReadFile(key + ".key")
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv(signingKey, string(text))
		if err := (release{out: dir}).sign(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for what, c := range map[string]struct {
		do   func(dir string)
		key  string
		want string // verified where it begins with "verify: "
	}{
		"as signed":           {func(string) {}, ours, "verify: 3 of 3 files of the release, all"},
		"another key":         {func(string) {}, others, "not signed by"},
		"the folder's key":    {func(string) {}, "SHA256SUMS.pem", "the key is from the folder itself"},
		"a changed file":      {func(dir string) { write(dir, "bin/tandem", "evil") }, ours, "bin/tandem: changed"},
		"files exchanged":     {func(dir string) { write(dir, "bin/tandem", "image") }, ours, "bin/tandem: changed"},
		"one more file":       {func(dir string) { write(dir, "bin/evil", "evil") }, ours, "bin/evil: not of this release"},
		"a file of that name": {func(dir string) { write(dir, "evil/tandem", "evil") }, ours, "evil/tandem: not of this release"},
		"a file less":         {func(dir string) { _ = os.Remove(filepath.Join(dir, "bin/tandem")) }, ours, "1 of 3 files are missing"},
		"a link":              {func(dir string) { _ = os.Symlink("/etc/passwd", filepath.Join(dir, "link")) }, ours, "is no plain file"},
		"changed checksums":   {func(dir string) { write(dir, sums, "") }, ours, "not signed by"},
		"signed by another":   {func(dir string) { write(dir, "bin/tandem", "evil"); sign(dir, others) }, ours, "not signed by"},
		"no signature":        {func(dir string) { _ = os.Remove(filepath.Join(dir, sums+".sig")) }, ours, "SHA256SUMS.sig is missing"},
		"some, in one folder": {func(dir string) {
			_ = os.Rename(filepath.Join(dir, "bin/tandem"), filepath.Join(dir, "tandem"))
			_ = errors.Join(os.RemoveAll(filepath.Join(dir, "bin")), os.RemoveAll(filepath.Join(dir, "images")))
		}, ours, "verify: 1 of 3 files of the release, all"},
		"one of them changed": {func(dir string) {
			_ = errors.Join(os.RemoveAll(filepath.Join(dir, "bin")), os.RemoveAll(filepath.Join(dir, "images")))
			write(dir, "tandem", "evil")
		}, ours, "tandem: changed"},
		"none": {func(dir string) {
			_ = errors.Join(os.RemoveAll(filepath.Join(dir, "bin")), os.RemoveAll(filepath.Join(dir, "images")))
		}, ours, "none of the 3 files"},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			write(dir, "bin/tandem", "program")
			write(dir, "bin/tandem two", "program")
			write(dir, "images/tandem.tar", "image")
			if err := (release{out: dir}).checksums(t.Context()); err != nil {
				t.Fatal(err)
			}
			sign(dir, ours)
			c.do(dir)
			key := c.key
			if !filepath.IsAbs(key) {
				key = filepath.Join(dir, key)
			}
			out, err := exec.CommandContext(t.Context(), "./verify", dir, key).CombinedOutput()
			if strings.HasPrefix(c.want, "verify: ") != (err == nil) || !strings.Contains(string(out), c.want) {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

func TestBadKeys(t *testing.T) {
	for _, text := range []string{"nonsense", "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"} {
		t.Setenv(signingKey, text)
		if err := (release{out: t.TempDir()}).sign(t.Context()); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Every module needs a licence, and all of its texts are there.
func TestLicenses(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"LICENSE", "NOTICE.txt", "license.go", "README"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("text of "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	if err := appendLicenses(&b, "example.com/m@v1", dir); err != nil {
		t.Fatal(err)
	}
	if s := b.String(); !strings.Contains(s, "text of LICENSE") || !strings.Contains(s, "text of NOTICE.txt") || strings.Contains(s, "license.go") || strings.Contains(s, "README") {
		t.Error(s)
	}
	if err := appendLicenses(&b, "example.com/none@v1", t.TempDir()); err == nil {
		t.Error("a module without a licence passes")
	}
}

// The key is in the environment of one program, which runs no other: not of those that build,
// as any of them may be somebody else's.
func TestTheKeyReachesOneStep(t *testing.T) {
	dir := t.TempDir()
	script, err := os.ReadFile("run")
	if err != nil {
		t.Fatal(err)
	}
	// The script in a folder of its own, where everything that it runs writes down what it has.
	seen := filepath.Join(dir, "seen")
	note := "#!/bin/sh\necho \"$(basename \"$0\") $* ${TANDEM_SIGNING_KEY-none}\" >> " + seen + "\n"
	for name, text := range map[string]string{
		"run": string(script), "version": note + "echo v1\n", "bin/unshare": note + "exit 1\n",
		"bin/go": note + "while [ \"$1\" != -o ]; do shift; done\ncp \"$(dirname \"$0\")/program\" \"$2\"\n", "bin/program": note,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "run"), "-out", "x")
	cmd.Env = []string{"PATH=" + filepath.Join(dir, "bin") + ":" + os.Getenv("PATH"), "TANDEM_SIGNING_KEY=the-key", "TMPDIR=" + dir}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	all, err := os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(all)) {
		if line = strings.TrimSpace(line); strings.HasSuffix(line, "the-key") != strings.HasPrefix(line, "dist -sign") {
			t.Errorf("%s", line)
		}
	}
	if !strings.Contains(string(all), "dist -sign -out x the-key") || strings.Count(string(all), "\n") < 4 {
		t.Errorf("ran\n%s", all)
	}
	t.Setenv(signingKey, "the-key")
	if err := (release{out: dir}).build(t.Context()); err == nil || !strings.Contains(err.Error(), "is set while building") {
		t.Errorf("a build with the key: %v", err)
	}
}
