// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Of a release that is built twice alike every file is signed, verified and listed, and what
// builds it never has the key; builds that differ and a changed checkout are no release.
func TestRelease(t *testing.T) {
	for _, program := range []string{"openssl", "git"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	const build = `#!/bin/sh
cd "$(dirname "$0")/../.." || exit 1
echo "build with key ${TANDEM_SIGNING_KEY-none}"
mkdir -p dist/bin dist/docs dist/images/tandem
echo "$VERSION $(CONTENT)" > dist/bin/tandem
echo image > dist/images/tandem/index.json
echo image > dist/images/tandem.tar
echo manual > dist/docs/tandem.8
(cd dist && find bin docs images -type f -exec sha256sum {} + | sort > ../sums && mv ../sums SHA256SUMS)
`
	const pages = `#!/bin/sh
echo "build with key ${TANDEM_SIGNING_KEY-none}"
mkdir "$1" && echo picture > "$1/overview-phone-dark.png"
`
	const signer = `#!/bin/sh
while [ "$1" != -out ]; do shift; done
cd "$2" || exit 1
printf '%s\n' "$TANDEM_SIGNING_KEY" > ../key
openssl dgst -sha256 -sign ../key -out SHA256SUMS.sig SHA256SUMS
openssl pkey -in ../key -pubout -out SHA256SUMS.pem
rm ../key
`
	for what, c := range map[string]struct {
		content, version, change string
		want                     string
		good                     bool
	}{
		"alike":           {"echo same", "1.2.3", "", "of 7 files each was changed", true},
		"by place":        {"pwd", "1.2.3", "", "two builds differ", false},
		"no version":      {"echo same", "$(touch owned)", "", "set VERSION", false},
		"not a clean one": {"echo same", "1.2.3", "stray", "not a clean checkout", false},
	} {
		t.Run(what, func(t *testing.T) {
			root, bin := t.TempDir(), t.TempDir()
			write := func(path, text string) {
				t.Helper()
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for _, name := range []string{"release", "assets", "verify"} {
				text, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				write(filepath.Join(root, "ci/dist", name), string(text))
			}
			write(filepath.Join(root, "ci/dist/run"), strings.ReplaceAll(build, "CONTENT", c.content))
			write(filepath.Join(root, "ci/pictures/pages"), pages)
			write(filepath.Join(root, ".gitignore"), "/dist\n/sums\n")
			write(filepath.Join(bin, "signer"), signer)
			write(filepath.Join(bin, "go"), "#!/bin/sh\necho \"build with key ${TANDEM_SIGNING_KEY-none}\"\ncp "+filepath.Join(bin, "signer")+" \"$3\"\n")
			run := func(name string, args ...string) (string, error) {
				cmd := exec.CommandContext(t.Context(), name, args...)
				cmd.Dir = root
				cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "TMPDIR="+t.TempDir(), "VERSION="+c.version,
					"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b", "GIT_CONFIG_GLOBAL=/dev/null")
				key, err := exec.CommandContext(t.Context(), "openssl", "genpkey", "-algorithm", "rsa", "-pkeyopt", "rsa_keygen_bits:3072").Output()
				if err != nil {
					t.Fatal(err)
				}
				cmd.Env = append(cmd.Env, "TANDEM_SIGNING_KEY="+string(key))
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"commit", "-qm", "all"}} {
				if out, err := run("git", args...); err != nil {
					t.Fatalf("git %v: %v: %s", args, err, out)
				}
			}
			if c.change != "" {
				write(filepath.Join(root, c.change), "")
			}
			out, err := run(filepath.Join(root, "ci/dist/release"))
			if (err == nil) != c.good || !strings.Contains(out, c.want) {
				t.Fatalf("%v: %s", err, out)
			}
			if strings.Contains(out, "PRIVATE KEY") || c.good && strings.Count(out, "build with key none\n") != 4 {
				t.Errorf("who builds has the key:\n%s", out)
			}
			const attached = `(?s)release: 8 of 8: list what a tag attaches, in bytes \.\.\.\n +\d+  SHA256SUMS\n +\d+  SHA256SUMS.pem\n +384  SHA256SUMS.sig\n +\d+  bin/tandem\n +6  images/tandem.tar\n$`
			if c.good && !regexp.MustCompile(attached).MatchString(out) {
				t.Error(out)
			}
		})
	}
}
