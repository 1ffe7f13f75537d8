// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/opencontainers/image-spec/schema"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	simple "github.com/sigstore/sigstore/pkg/signature/payload"
)

// secret is one private key for all tests, in PEM: to make one takes a second.
var secret = sync.OnceValue(func() string {
	private, err := rsa.GenerateKey(rand.Reader, 3072)
	if err != nil {
		panic(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		panic(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
})

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
		t.Fatal(err)
	}
}

// unsigned is a small release as it is before it is signed, with a file of each kind.
func unsigned(t *testing.T, version string) release {
	t.Helper()
	amd64 := target{"linux", "amd64"}
	r := release{root: "../..", out: t.TempDir(), version: version, commit: "c0ffee", when: time.Unix(1_780_000_000, 0).UTC(), targets: []target{amd64}}
	source := t.TempDir()
	put(t, filepath.Join(source, "main.go"), "package main\n\nfunc main() {}\n")
	put(t, filepath.Join(source, "go.mod"), "module example.com/small\n")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", r.program(amd64), ".")
	build.Dir, build.Env = source, append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{
		"systemd/tandem.service", "config.yaml", "copyright", "openrc/tandem", "man/tandem.8", "man/tandem-run.8", "man/tandem-kubeadm.7",
		"completion/tandem.bash", "completion/_tandem", "completion/tandem.fish",
	} {
		put(t, filepath.Join(r.docs(), name), name)
	}
	put(t, filepath.Join(r.out, "windows/tandem-1.2.3-windows-amd64.msi"), "msi")
	put(t, filepath.Join(r.out, "windows/tandem-1.2.3-windows-amd64.zip"), "zip")
	put(t, filepath.Join(r.out, "kubernetes/tandem-1.2.3.tgz"), "chart")
	put(t, filepath.Join(r.out, "kubernetes/index.yaml"), "index")
	put(t, filepath.Join(r.out, "managers/scoop/tandem.json"), "{}")
	put(t, filepath.Join(r.out, "managers/homebrew/tandem.rb"), "class Tandem")
	index, err := r.add(indexes(), amd64)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.save("tandem", r.tag(), index); err != nil {
		t.Fatal(err)
	}
	for _, do := range []func(context.Context) error{r.packages, r.materials, r.provenance, r.checksums} {
		if err := do(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// signed is unsigned, signed.
func signed(t *testing.T) release {
	t.Helper()
	r := unsigned(t, "1.2.3")
	t.Setenv(signingKey, secret())
	if err := (release{root: r.root, out: r.out, only: "programs"}).sign(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

func read(t *testing.T, r release, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(r.out, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// cosign is the library by which cosign verifies: what it takes is what cosign takes.
func cosign(t *testing.T, r release) signature.Verifier {
	t.Helper()
	public, err := cryptoutils.UnmarshalPEMToPublicKey(read(t, r, sums+".pem"))
	if err != nil {
		t.Fatal(err)
	}
	v, err := signature.LoadVerifier(public, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Of a signed release each part verifies by what its users have: cosign, openssl, rpm, apk, apt
// and dnf. Provenance and bills are of what was signed, and a second signing gives the same bits.
func TestSign(t *testing.T) {
	before := unsigned(t, "1.2.3")
	r := signed(t)
	if err := cosign(t, r).VerifySignature(bytes.NewReader(read(t, r, sums+".sig")), bytes.NewReader(read(t, r, sums))); err != nil {
		t.Error(err)
	}
	if bytes.Equal(read(t, before, sums), read(t, r, sums)) || !bytes.Equal(read(t, r, sums), read(t, signed(t), sums)) {
		t.Error("signing twice gives other bits, or none")
	}
	const rpm = "packages/tandem-1.2.3-1.x86_64.rpm"
	sum := fmt.Sprintf("%x", sha256.Sum256(read(t, r, rpm)))
	for _, name := range []string{sums, provenanceFile, "sbom/tandem-linux-amd64.spdx.json", "packages/repodata/primary.xml.gz"} {
		text := read(t, r, name)
		if strings.HasSuffix(name, ".gz") {
			text = unzip(t, text)
		}
		if !strings.Contains(string(text), sum) {
			t.Errorf("%s has no checksum of the signed rpm", name)
		}
	}
	var s statement
	if err := json.Unmarshal(read(t, r, provenanceFile), &s); err != nil {
		t.Fatal(err)
	}
	for _, subject := range s.Subject {
		if subject.Name == sums || subject.Name == provenanceFile {
			t.Errorf("a subject is %s", subject.Name)
		}
	}
	t.Run("apk", func(t *testing.T) {
		const apk = "packages/tandem_1.2.3-r1_x86_64.apk"
		plain, whole := read(t, before, apk), read(t, r, apk)
		head, found := bytes.CutSuffix(whole, plain)
		if !found {
			t.Fatal("what was built is not in what is signed")
		}
		in := tar.NewReader(bytes.NewReader(unzip(t, head)))
		h, err := in.Next()
		if err != nil || h.Name != ".SIGN.RSA256.tandem.rsa.pub" {
			t.Fatal(err, h)
		}
		signature, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		first := bytes.NewReader(plain)
		z, err := gzip.NewReader(first)
		if err != nil {
			t.Fatal(err)
		}
		z.Multistream(false)
		if _, err := io.Copy(io.Discard, z); err != nil || first.Len() == 0 {
			t.Fatal(err, "an apk of one archive")
		}
		if err := cosign(t, r).VerifySignature(bytes.NewReader(signature), bytes.NewReader(plain[:len(plain)-first.Len()])); err != nil {
			t.Error(err)
		}
	})
	t.Run("rpm", func(t *testing.T) {
		if _, err := exec.LookPath("rpmkeys"); err != nil {
			t.Skipf("nothing here verifies rpm: %v", err)
		}
		db := t.TempDir()
		rpmkeys := func(args ...string) (string, error) {
			out, err := exec.CommandContext(t.Context(), "rpmkeys", append([]string{"--dbpath", db}, args...)...).CombinedOutput()
			return string(out), err
		}
		if out, err := rpmkeys("--import", filepath.Join(r.out, "packages/tandem.asc")); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		out, err := rpmkeys("--checksig", "-v", filepath.Join(r.out, rpm))
		if err != nil || !strings.Contains(out, "Header V4 RSA/SHA256 Signature, key ID") || strings.Contains(out, "NO") {
			t.Errorf("%v: %s", err, out)
		}
		changed := slices.Clone(read(t, r, rpm))
		changed[len(changed)-5] ^= 1
		put(t, filepath.Join(db, "changed.rpm"), string(changed))
		if out, err := rpmkeys("--checksig", filepath.Join(db, "changed.rpm")); err == nil {
			t.Errorf("a changed rpm passes: %s", out)
		}
	})
	t.Run("apt", func(t *testing.T) {
		if _, err := exec.LookPath("apt-get"); err != nil {
			t.Skipf("no apt: %v", err)
		}
		state := t.TempDir()
		for _, dir := range []string{"lists/partial", "cache/archives/partial"} {
			if err := os.MkdirAll(filepath.Join(state, dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		// A copy: the proxy of a machine's configuration and its sources are left out.
		get := func(args ...string) (string, error) {
			put(t, filepath.Join(state, "sources"), "deb [signed-by="+r.out+"/packages/tandem.asc] file:"+r.out+"/packages/ /\n")
			cmd := exec.CommandContext(t.Context(), "apt-get", append([]string{
				"-o", "APT::Architecture=amd64", "-o", "APT::Architectures=amd64", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Languages=none",
				"-o", "Dir::Etc::SourceList=" + state + "/sources", "-o", "Dir::Etc::SourceParts=-", "-o", "Dir::State=" + state, "-o", "Dir::State::status=/dev/null", "-o", "Dir::Cache=" + state + "/cache",
			}, args...)...)
			cmd.Dir = state
			out, err := cmd.CombinedOutput()
			return string(out), err
		}
		if out, err := get("update", "--error-on=any"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		out, err := get("download", "--print-uris", "tandem")
		if want := fmt.Sprintf("SHA256:%x", sha256.Sum256(read(t, r, "packages/tandem_1.2.3-1_amd64.deb"))); err != nil || !strings.Contains(out, want) {
			t.Errorf("%v: %s", err, out)
		}
		list := filepath.Join(r.out, "packages/InRelease")
		good, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		put(t, list, strings.Replace(string(good), "Suite: stable", "Suite: evil", 1))
		defer put(t, list, string(good))
		if out, err := get("update", "--error-on=any"); err == nil {
			t.Errorf("apt takes a changed list: %s", out)
		}
	})
	t.Run("dnf", func(t *testing.T) { repodataAgrees(t, r) })
	t.Run("image", func(t *testing.T) {
		image, err := layout.ImageIndexFromPath(filepath.Join(r.out, "images/tandem"))
		if err != nil {
			t.Fatal(err)
		}
		m, err := image.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		index, err := layout.ImageIndexFromPath(filepath.Join(r.out, "images/tandem.sig"))
		if err != nil {
			t.Fatal(err)
		}
		entries, err := index.IndexManifest()
		if err != nil || len(entries.Manifests) != 1 {
			t.Fatal(err, entries)
		}
		if tag := entries.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; tag != "sha256-"+m.Manifests[0].Digest.Hex+".sig" {
			t.Errorf("pushed to %s", tag)
		}
		img, err := index.Image(entries.Manifests[0].Digest)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := img.RawManifest()
		conforms(t, "signature", schema.ValidatorMediaTypeManifest, raw, err)
		about, err := img.Manifest()
		if err != nil || len(about.Layers) != 1 {
			t.Fatal(err, about)
		}
		text, err := base64.StdEncoding.DecodeString(about.Layers[0].Annotations["dev.cosignproject.cosign/signature"])
		if err != nil {
			t.Fatal(err)
		}
		layers, err := img.Layers()
		if err != nil {
			t.Fatal(err)
		}
		blob, err := layers[0].Compressed()
		if err != nil {
			t.Fatal(err)
		}
		defer blob.Close()
		content, err := io.ReadAll(blob)
		if err != nil {
			t.Fatal(err)
		}
		if err := cosign(t, r).VerifySignature(bytes.NewReader(text), bytes.NewReader(content)); err != nil {
			t.Error(err)
		}
		var c simple.Cosign
		if err := json.Unmarshal(content, &c); err != nil || c.Image.Identifier() != m.Manifests[0].Digest.String() || c.Image.Context().Name() != repository {
			t.Errorf("%v: %s", err, content)
		}
	})
}

func unzip(t *testing.T, text []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return plain
}

// repodataAgrees reads the repository as dnf does: each list by the signed one, each rpm by a list.
func repodataAgrees(t *testing.T, r release) {
	keys, err := openpgp.ReadArmoredKeyRing(bytes.NewReader(read(t, r, "packages/tandem.asc")))
	if err != nil {
		t.Fatal(err)
	}
	text := read(t, r, "packages/repodata/repomd.xml")
	if _, err := openpgp.CheckArmoredDetachedSignature(keys, bytes.NewReader(text), bytes.NewReader(read(t, r, "packages/repodata/repomd.xml.asc")), nil); err != nil {
		t.Error(err)
	}
	var head struct {
		Data []struct {
			Type     string `xml:"type,attr"`
			Sum      string `xml:"checksum"`
			Open     string `xml:"open-checksum"`
			Location struct {
				Path string `xml:"href,attr"`
			} `xml:"location"`
		} `xml:"data"`
	}
	if err := xml.Unmarshal(text, &head); err != nil || len(head.Data) != 3 {
		t.Fatal(err, head)
	}
	for _, d := range head.Data {
		short := read(t, r, "packages/"+d.Location.Path)
		plain := unzip(t, short)
		if fmt.Sprintf("%x", sha256.Sum256(short)) != d.Sum || fmt.Sprintf("%x", sha256.Sum256(plain)) != d.Open {
			t.Errorf("%s: other checksums", d.Type)
		}
		var all struct {
			Packages []struct {
				ID       string   `xml:"pkgid,attr"`
				Name     string   `xml:"name"`
				Arch     string   `xml:"arch"`
				Sum      string   `xml:"checksum"`
				Files    []string `xml:"file"`
				Location struct {
					Path string `xml:"href,attr"`
				} `xml:"location"`
				Provides []struct {
					Name    string `xml:"name,attr"`
					Version string `xml:"ver,attr"`
				} `xml:"format>provides>entry"`
			} `xml:"package"`
		}
		if err := xml.Unmarshal(plain, &all); err != nil || len(all.Packages) != 1 {
			t.Fatalf("%v: %s", err, plain)
		}
		p := all.Packages[0]
		switch d.Type {
		case "primary":
			if p.Name != "tandem" || p.Arch != "x86_64" || p.Sum != fmt.Sprintf("%x", sha256.Sum256(read(t, r, "packages/"+p.Location.Path))) ||
				len(p.Provides) != 1 || p.Provides[0].Name != "tandem" || p.Provides[0].Version != "1.2.3" {
				t.Errorf("%+v\n%s", p, plain)
			}
		case "filelists":
			demand(t, strings.Join(p.Files, " "), "etc/tandem")
		}
		if d.Type != "primary" && p.ID != fmt.Sprintf("%x", sha256.Sum256(read(t, r, "packages/tandem-1.2.3-1.x86_64.rpm"))) {
			t.Errorf("%s is of %s", d.Type, p.ID)
		}
	}
}

// What is not as it was built is not signed, nor is anything signed twice.
func TestSignsWhatWasBuilt(t *testing.T) {
	t.Setenv(signingKey, secret())
	small := unsigned(t, "1.2.3")
	for what, change := range map[string]func(r release){
		"bin/tandem-linux-amd64 is not what was built": func(r release) { put(t, r.program(r.targets[0]), "evil") },
		"bin/evil is not what was built":               func(r release) { put(t, filepath.Join(r.out, "bin/evil"), "evil") },
		"kubernetes/index.yaml is missing":             func(r release) { _ = os.Remove(filepath.Join(r.out, "kubernetes/index.yaml")) },
		"no provenance":                                func(r release) { _ = os.Remove(filepath.Join(r.out, provenanceFile)) },
		"signed already":                               func(r release) { _ = r.sign(t.Context()) },
	} {
		r := small
		r.out = t.TempDir()
		if err := os.CopyFS(r.out, os.DirFS(small.out)); err != nil {
			t.Fatal(err)
		}
		change(r)
		if err := r.sign(t.Context()); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// One flipped bit of any file of a release is found, whatever kind it is of.
func TestEveryFlippedBitIsFound(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip(err)
	}
	r := signed(t)
	public := filepath.Join(t.TempDir(), "key.pem")
	if err := os.Rename(filepath.Join(r.out, sums+".pem"), public); err != nil {
		t.Fatal(err)
	}
	verify := func() (string, error) {
		out, err := exec.CommandContext(t.Context(), "./verify", r.out, public).CombinedOutput()
		return string(out), err
	}
	if out, err := verify(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	kinds := map[string]bool{}
	err := r.files(func(name, _ string) {
		kinds[filepath.Ext(name)] = true
		path := filepath.Join(r.out, name)
		whole := read(t, r, name)
		changed := slices.Clone(whole)
		changed[len(changed)/2] ^= 1
		put(t, path, string(changed))
		if out, err := verify(); err == nil || !strings.Contains(out, strings.TrimSuffix(name, ".sig")) {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		put(t, path, string(whole))
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"", ".deb", ".rpm", ".apk", ".asc", ".pub", ".gz", ".xml", ".msi", ".zip", ".tgz", ".yaml", ".json", ".rb", ".tar", ".sig", ".service", ".bash", ".fish", ".7", ".8"} {
		if !kinds[kind] {
			t.Errorf("no file of kind %q: %v", kind, kinds)
		}
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
		for _, args := range [][]string{{"genpkey", "-algorithm", "rsa", "-pkeyopt", "rsa_keygen_bits:3072", "-out", public + ".key"}, {"pkey", "-in", public + ".key", "-pubout", "-out", public}} {
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
		k, err := newKey(string(text), time.Unix(1_800_000_000, 0))
		if err != nil {
			t.Fatal(err)
		}
		if err := (release{out: dir}).seal(k); err != nil {
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
	_, other, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(other)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "nonsense", "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))} {
		if _, err := newKey(text, time.Time{}); err == nil || strings.Contains(err.Error(), "secret") {
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
