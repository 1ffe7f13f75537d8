// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
)

// Whatever a kubeconfig says, the answer is a connection to a server or an error
// that names the file.
func FuzzKubeconfig(f *testing.F) {
	f.Add(goodKubeconfig)
	f.Add(strings.ReplaceAll(goodKubeconfig, "https://192.0.2.1:6443", "\x1b[2J"))
	f.Add("{}")
	f.Add("clusters: [{cluster: {server: x}}]\ncontexts: [{}]\ncurrent-context: ''\n")
	f.Add(`{"apiVersion":"v1","kind":"Config","users":[{"name":"u","user":{"exec":{"command":"x"}}}]}`)
	file := filepath.Join(f.TempDir(), "kubeconfig")
	p := nowhere(nil)
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "/dev/") || strings.Contains(text, "/proc/") {
			t.Skip("names files of this machine that may have no end")
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		switch c, err := p.connection(config.API{Kubeconfig: file}); {
		case err == nil && c.Host == "":
			t.Error("no server and no error")
		case err != nil && !strings.HasPrefix(err.Error(), "kubeconfig "+file+": "):
			t.Errorf("got %v", err)
		}
	})
}
