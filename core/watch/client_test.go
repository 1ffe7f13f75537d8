// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/watch/apitest"
)

// nowhere is a place without any environment.
func nowhere(env map[string]string) environment {
	p := processEnvironment()
	p.getenv = func(key string) string { return env[key] }
	return p
}

const goodKubeconfig = `apiVersion: v1
kind: Config
current-context: c
clusters: [{name: k, cluster: {server: "https://192.0.2.1:6443"}}]
contexts: [{name: c, context: {cluster: k, user: u}}]
users: [{name: u, user: {token: secret}}]
`

// A kubeconfig that anybody may write is warned about: it names the server.
func TestExposedKubeconfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(goodKubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, warned := range map[os.FileMode]bool{0o600: false, 0o644: false, 0o666: runtime.GOOS != "windows"} {
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		c := config.Default()
		c.NodeName, c.API.Kubeconfig = "n", file
		if _, err := Open(&c, slog.New(slog.NewTextHandler(&out, nil)), Hooks{}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(out.String(), "world-writable"); got != warned {
			t.Errorf("%s: warned %t: %s", mode, got, &out)
		}
	}
}

// Every mistake is explained: what, where, why, and what to do.
func TestKubeconfigMistakes(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ old, new, want string }{
		"fine":           {"", "", ""},
		"no context":     {"current-context: c\n", "", "no current-context; see kubectl --kubeconfig FILE config view"},
		"other context":  {"current-context: c", "current-context: d", `current-context "d" is not defined; see kubectl`},
		"no cluster":     {"cluster: k,", "cluster: l,", `context "c": cluster "l" is not defined; see kubectl`},
		"no user":        {"user: u}}]", "user: v}}]", `context "c": user "v" is not defined; see kubectl`},
		"no server":      {`server: "https://192.0.2.1:6443"`, `server: ""`, `cluster "k" has no server; see kubectl`},
		"no YAML":        {"kind: Config", "kind: {", "it must be YAML of kind Config"},
		"another kind":   {"kind: Config", "kind: Pod", "it must be YAML of kind Config"},
		"no token file":  {"{token: secret}", "{tokenFile: /no/token}", "/no/token: no such file"},
		"no CA":          {`6443"}`, `6443", certificate-authority: /no/ca}`, "unable to read certificate-authority /no/ca"},
		"no certificate": {"{token: secret}", "{client-certificate: /no/crt, client-key: /no/key}", "unable to read client-cert /no/crt"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, "kubeconfig")
			if err := os.WriteFile(file, []byte(strings.Replace(goodKubeconfig, c.old, c.new, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := nowhere(nil).connect(config.API{Kubeconfig: file})
			switch {
			case c.want == "" && err != nil:
				t.Fatal(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "kubeconfig "+file+": ")):
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestConnectionMistakes(t *testing.T) {
	for name, c := range map[string]struct {
		api  config.API
		env  map[string]string
		want string
	}{
		"no kubeconfig": {config.API{Kubeconfig: "/no/kubeconfig"}, nil, "kubeconfig /no/kubeconfig: file does not exist; set --kubeconfig to its path"},
		"nothing":       {config.API{}, nil, "not running in a pod"},
		"no account": {
			config.API{},
			map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"},
			"automountServiceAccountToken",
		},
	} {
		if _, err := nowhere(c.env).connect(c.api); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Open(&config.Config{API: config.API{Server: "http://127.0.0.1:1"}}, nil, Hooks{}); err == nil || !strings.Contains(err.Error(), "--hostname-override") {
		t.Errorf("no Node name: %v", err)
	}
	for _, server := range []string{"127.0.0.1:6443", "http://127.0.0.1:6443", "https://[fd00::1]:6443"} {
		if _, err := Open(&config.Config{NodeName: "n", API: config.API{Server: server}}, nil, Hooks{}); err != nil {
			t.Errorf("%s: %v", server, err)
		}
	}
	if _, err := Open(&config.Config{NodeName: "n", API: config.API{Server: "http://[::1"}}, nil, Hooks{}); err == nil || !strings.Contains(err.Error(), "URL or HOST:PORT") {
		t.Errorf("no URL: %v", err)
	}
}

// A password or token in the API server's URL is in no message: those are in logs, in the status, and in Events.
func TestPasswordOfTheServer(t *testing.T) {
	for server, want := range map[string]string{
		"http://node:hunter2@127.0.0.1:1":         "http://127.0.0.1:1:",
		"https://127.0.0.1:1/base?token=hunter2":  "https://127.0.0.1:1/base:",
		"http://node:hunter2@[::1":                "URL or HOST:PORT",
		"node:hunter2@127.0.0.1:1":                "API server (hidden): dial",
		"https://node:hunter2@127.0.0.1:1/%zz%%%": "URL or HOST:PORT",
	} {
		client, err := nowhere(nil).connect(config.API{Server: server})
		if err != nil {
			t.Fatal(err)
		}
		var rc rest.Interface
		if rc, err = client.REST(corev1.SchemeGroupVersion); err == nil {
			err = rc.Get().Resource("services").Do(t.Context()).Error()
			err = errors.New(explain(&kind{}, err, client.Host()))
		}
		if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", server, err)
		}
	}
}

// The server that is named overrides the kubeconfig's, whose credentials stay.
func TestServerOverrides(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(goodKubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := nowhere(nil).connection(config.API{Kubeconfig: file, Server: "https://192.0.2.9:443"})
	if err != nil || c.Host != "https://192.0.2.9:443" || c.BearerToken != "secret" {
		t.Errorf("%s, %v", c, err)
	}
}

// In a HostProcess container of Windows the volumes may lie under another root:
// the kubeconfig, and what it names.
func TestSandbox(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := apitest.Start(apitest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	host, port, _ := strings.Cut(s.Address(), ":")
	p := nowhere(map[string]string{sandboxEnv: root, "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port})
	write(accountToken, "secret")
	write(accountCA, string(s.CA()))
	write("/var/lib/kube-proxy/kubeconfig.conf", strings.Replace(goodKubeconfig, "{token: secret}", "{tokenFile: "+accountToken+"}", 1))

	c, err := p.connection(config.API{Kubeconfig: "/var/lib/kube-proxy/kubeconfig.conf"})
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(root, accountToken); c.BearerTokenFile != want {
		t.Errorf("token file %s, want %s", c.BearerTokenFile, want)
	}
	if c, err = p.connection(config.API{}); err != nil {
		t.Fatal(err)
	}
	if c.CAFile != filepath.Join(root, accountCA) || c.Host != s.URL() {
		t.Errorf("%s %s", c.Host, c.CAFile)
	}
	if got := p.path("/nowhere/at/all"); got != "/nowhere/at/all" {
		t.Errorf("what is nowhere is at %s", got)
	}
}

// A pod connects with its service account.
func TestPodAgainstServer(t *testing.T) {
	w := newWorld(t, apitest.Options{Tokens: []string{"secret"}})
	root := t.TempDir()
	for file, text := range map[string]string{accountToken: "secret", accountCA: string(w.server.CA())} {
		file = filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	host, port, _ := strings.Cut(w.server.Address(), ":")
	t.Setenv(sandboxEnv, root)
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
	w.config.API.Kubeconfig = ""
	w.run().synced()
	w.becomes(initial)
}

// An unused client is collected, whatever its hooks refer to: client-go's cache
// of transports must not keep it.
func TestUnusedClientsAreCollected(t *testing.T) {
	collected := make(chan struct{})
	func() {
		var c *Client
		p := processEnvironment()
		p.connected = func([]netip.AddrPort) { _ = c } // as the proxy's hook refers to the proxy
		var err error
		if c, err = p.connect(config.API{Server: "http://192.0.2.200:6443"}); err != nil {
			t.Fatal(err)
		}
		runtime.AddCleanup(c, func(done chan struct{}) { close(done) }, collected)
	}()
	for range 100 {
		runtime.GC()
		select {
		case <-collected:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Error("100 garbage collections have left it")
}
