// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/tandem-proxy/tandem/core/question"
)

// fakeCluster is an API server with tandems on nodes: what each answers, or the
// error. It wants the user's token.
func fakeCluster(t *testing.T, nodes map[string]any) (kubeconfig string) {
	t.Helper()
	var asked atomic.Int32
	server := httptest.NewTLSServer( // clients send no token otherwise
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer the-user" {
				http.Error(w, `{"kind":"Status","message":"who are you?"}`, http.StatusForbidden)
				return
			}
			const list = "/api/v1/namespaces/kube-system/pods"
			if r.URL.Path == list {
				if r.URL.Query().Get("labelSelector") != "app.kubernetes.io/name=tandem" {
					t.Errorf("requested %s", r.URL)
				}
				if r.URL.Query().Get("continue") == "" { // in two pages
					fmt.Fprint(w, `{"metadata":{"continue":"more"},"items":[{"metadata":{"name":"tandem-a"},"spec":{"nodeName":"a"}},{"metadata":{"name":"pending"},"spec":{}}]}`)
					return
				}
				var items []string
				for name := range nodes {
					if name != "a" {
						items = append(items, fmt.Sprintf(`{"metadata":{"name":"tandem-%s"},"spec":{"nodeName":%q}}`, name, name))
					}
				}
				fmt.Fprintf(w, `{"items":[%s]}`, strings.Join(items, ","))
				return
			}
			if r.URL.Path == "/api/v1/namespaces/kube-system/serviceaccounts/tandem-status/token" {
				var request authenticationv1.TokenRequest
				if err := json.NewDecoder(r.Body).Decode(&request); err != nil || r.Method != http.MethodPost || fmt.Sprint(request.Spec.Audiences) != "[tandem]" || *request.Spec.ExpirationSeconds != 600 {
					t.Errorf("%s of %+v: %v", r.Method, request, err)
				}
				if _, without := nodes["no account"]; without {
					http.Error(w, `{"kind":"Status","message":"serviceaccounts \"tandem-status\" not found"}`, http.StatusNotFound)
					return
				}
				request.Status.Token = "for tandems"
				w.WriteHeader(http.StatusCreated)
				_ = json.NewEncoder(w).Encode(request)
				return
			}
			if r.Header.Get("X-Tandem-Token") != "for tandems" || r.Method != http.MethodGet {
				http.Error(w, "a token is needed", http.StatusUnauthorized) // of the tandem
				return
			}
			name, ok := strings.CutPrefix(r.URL.Path, list+"/tandem-")
			name, ok2 := strings.CutSuffix(name, ":10249/proxy/status")
			if !ok || !ok2 {
				t.Errorf("requested %s", r.URL)
			}
			asked.Add(1)
			if err, failed := nodes[name].(error); failed {
				http.Error(w, `{"kind":"Status","message":"`+err.Error()+`"}`, http.StatusServiceUnavailable)
				return
			}
			if answer, raw := nodes[name].(http.HandlerFunc); raw {
				answer(w, r)
				return
			}
			_ = json.NewEncoder(w).Encode(nodes[name])
		}))
	t.Cleanup(server.Close)
	kubeconfig = filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: {token: the-user}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
`, server.URL, base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

func knows(hash string, services ...string) question.Status {
	d := question.Status{Version: "v1", Mode: "nftables", Healthy: true, Hash: hash, Inputs: []question.Input{{Age: 1.5}, {Age: 0.5}}}
	for _, s := range services {
		name, hash, _ := strings.Cut(s, "=")
		d.Services = append(d.Services, question.Service{Name: name, Hash: hash, State: "Programmed"})
	}
	return d
}

// kubectl runs the program as the plugin.
func kubectl(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	code = run(t.Context(), append([]string{"/usr/local/bin/kubectl-tandem"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

// Nodes that know the same are in step; one that does not is found, with what
// differs.
func TestKubectlPlugin(t *testing.T) {
	same := knows("h1", "ns/web=1", "ns/db=1")
	config := fakeCluster(t, map[string]any{"a": same, "b": same, "c": same})
	code, out, stderr := kubectl(t, "status", "--kubeconfig", config)
	if code != exitOK || strings.Count(out, "healthy") != 3 || !strings.Contains(out, "1.5s") || strings.Contains(out, "pending") {
		t.Errorf("exit code %d\n%s%s", code, out, stderr)
	}
	if code, out, _ := kubectl(t, "diff", "--kubeconfig", config); code != exitOK || !strings.Contains(out, "know the same") {
		t.Errorf("exit code %d\n%s", code, out)
	}

	late := knows("h2", "ns/web=2", "ns/old=1")
	config = fakeCluster(t, map[string]any{"a": late, "b": same, "c": same})
	code, out, _ = kubectl(t, "status", "--kubeconfig", config)
	if code != exitDiffers || strings.Count(out, "differs from most") != 1 {
		t.Errorf("exit code %d\n%s", code, out)
	}
	code, out, _ = kubectl(t, "diff", "--kubeconfig", config, "-o", "json")
	var found struct{ Items []question.NodeDifference }
	if err := json.Unmarshal([]byte(out), &found); err != nil || code != exitDiffers {
		t.Fatalf("exit code %d, %v\n%s", code, err, out)
	}
	want := []question.NodeDifference{{Node: "a", Service: "ns/db", What: "missing"}, {Node: "a", Service: "ns/web", What: "differs"}, {Node: "a", Service: "ns/old", What: "extra"}}
	if fmt.Sprint(found.Items) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", found.Items, want)
	}
}

// Help and mistakes name a verb as it was typed: of kubectl.
func TestPluginIsCalledAsItIsTyped(t *testing.T) {
	_, help, _ := kubectl(t, "services", "--help")
	_, all, _ := kubectl(t, "--help")
	code, _, mistake := kubectl(t, "services", "--nowhere")
	for want, text := range map[string]string{
		"\n  kubectl tandem services [NAMESPACE/NAME] [flags]\n": help, "\n  kubectl tandem [command]\n": all, "\"kubectl tandem [command] --help\"": all,
		"See 'kubectl tandem services --help'.": mistake,
	} {
		if code != exitUsage || !strings.Contains(text, want) || strings.Contains(text, "tandem kubectl") {
			t.Errorf("exit code %d, want %q in\n%s", code, want, text)
		}
	}
	if _, help, _ := tandem(t, "kubectl", "services", "--help"); !strings.Contains(help, "\n  tandem kubectl services [") {
		t.Error(help)
	}
}

// A node that does not answer is named with the reason and what to do, and is no
// reason to keep silent about the others.
func TestKubectlPluginWithAnUnreachableNode(t *testing.T) {
	same := knows("h1", "ns/web=1")
	config := fakeCluster(t, map[string]any{"a": same, "b": fmt.Errorf("connection refused \x1b[31m"), "c": same})
	code, out, stderr := kubectl(t, "status", "--kubeconfig", config)
	if code != exitFailure || !strings.Contains(out, "connection refused") || !strings.Contains(out, "metricsBindAddress") || strings.Contains(out, "\x1b") || strings.Count(out, "healthy") != 2 {
		t.Errorf("exit code %d\n%s%s", code, out, stderr)
	}
	if !strings.Contains(stderr, "1 of 3 nodes did not answer") {
		t.Error(stderr)
	}
	stranger := filepath.Join(t.TempDir(), "config")
	text, _ := os.ReadFile(config)
	if err := os.WriteFile(stranger, []byte(strings.Replace(string(text), "the-user", "a-stranger", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := kubectl(t, "status", "--kubeconfig", stranger); code != exitFailure || !strings.Contains(stderr, "pods/proxy") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
	if code, _, stderr := kubectl(t, "status", "--kubeconfig", "/nowhere"); code != exitFailure || !strings.Contains(stderr, "kubeconfig") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}

// Where the proxy is asked for without the account whose token tandems take, what makes it is named.
func TestKubectlPluginWithoutItsAccount(t *testing.T) {
	config := fakeCluster(t, map[string]any{"a": knows("h1"), "no account": nil})
	code, _, stderr := kubectl(t, "status", "--via", "proxy", "--kubeconfig", config)
	if code != exitFailure || !strings.Contains(stderr, "kube-system/tandem-status") || !strings.Contains(stderr, "kubectl.enabled") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}

// What a pod answers is a stranger's: a redirect must not get the user's token, and
// neither another program's document nor its refusal counts as a tandem's.
func TestKubectlPluginDistrustsPods(t *testing.T) {
	var stolen atomic.Bool
	thief := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stolen.Store(true)
		_ = json.NewEncoder(w).Encode(knows("h1"))
	}))
	defer thief.Close()
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"redirect": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, thief.URL, http.StatusFound) }, "Found"},
		"stranger": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }, "not a tandem status"},
		"refusal":  {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "go away", http.StatusForbidden) }, "go away"},
	} {
		config := fakeCluster(t, map[string]any{"a": c.answer})
		code, out, _ := kubectl(t, "status", "--kubeconfig", config)
		if code != exitFailure || !strings.Contains(out, c.want) || strings.Contains(out, "pods/proxy") {
			t.Errorf("%s: exit code %d\n%s", name, code, out)
		}
	}
	if stolen.Load() {
		t.Error("a redirect was followed with the user's credentials")
	}
}

// An answer beyond the limit is said to be one, not to be bad JSON.
func TestAnswerBeyondTheLimit(t *testing.T) {
	const text = `{"items":["0123456789"]}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }))
	defer server.Close()
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[int64]string{int64(len(text)): "", 10: "answer larger than 10 bytes"} {
		var answer struct{ Items []string }
		said := ""
		if err := get(t.Context(), server.Client(), at, nil, limit, &answer); err != nil {
			said = err.Error()
		}
		if said != want {
			t.Errorf("limit %d: %q, want %q", limit, said, want)
		}
	}
}
