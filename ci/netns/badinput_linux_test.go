// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestBadManifestsAreIsolated puts everything that goes wrong in a folder
// next to a good Service: the good one works throughout, and the status names
// each mistake with its place.
func TestBadManifestsAreIsolated(t *testing.T) {
	s := newSite(t)
	s.write("", "10.244.1.2")
	s.start()
	if err := s.answers(clusterIP); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"syntax.yaml":    "apiVersion: v1\nkind: Service\nmetadata: {name: [\n",
		"helm.yaml":      "apiVersion: v1\nkind: Service\nmetadata:\n  name: {{ .Release.Name }}\n",
		"field.yaml":     "apiVersion: v1\nkind: Service\nmetadata: {name: typo}\nspec:\n  clusterIP: 10.96.0.70\n  prots: []\n",
		"port.yaml":      "apiVersion: v1\nkind: Service\nmetadata: {name: ports}\nspec:\n  clusterIP: 10.96.0.71\n  ports: [{port: 70000}]\n",
		"name.yaml":      "apiVersion: v1\nkind: Service\nmetadata: {name: \"a\\n; drop \\\"\"}\nspec: {clusterIP: 10.96.0.72, ports: [{port: 80}]}\n",
		"conflict.yaml":  "apiVersion: v1\nkind: Service\nmetadata: {name: zz-thief}\nspec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}\n",
		"endpoints.yaml": "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: evil, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\nports: [{name: http, port: 8080}]\nendpoints:\n- addresses: [127.0.0.1]\n- addresses: [169.254.169.254]\n",
	} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(s.dir, "folder.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.eventually(5*time.Second, "every mistake is named", func() error {
		out, err := s.run(s.bin, "status")
		if err != nil {
			return err
		}
		for _, part := range []string{
			"syntax.yaml:3", "helm.yaml:4", "Helm", "field.yaml:6", "prots", "port.yaml:6", "70000", "name.yaml:3",
			"zz-thief: cluster IP 10.96.0.10:80 (tcp) belongs to Service default/web", "127.0.0.1", "169.254.169.254",
		} {
			if !strings.Contains(out, part) {
				return fmt.Errorf("%q is missing in:\n%s", part, out)
			}
		}
		return nil
	})
	if err := s.answers(clusterIP); err != nil {
		t.Errorf("with bad manifests: %v", err)
	}

	// A file that becomes invalid keeps its last valid content.
	good, err := os.ReadFile(filepath.Join(s.dir, "all.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	said := s.problems("all.yaml")
	for _, broken := range []string{string(good[:len(good)/2]), "not: [yaml", strings.Replace(string(good), "kind: Service", "kind: [", 1)} {
		s.put(broken)
		s.eventually(time.Second, "the mistake is named", func() error {
			if now := s.problems("all.yaml"); now == said {
				return fmt.Errorf("said: %q", now)
			}
			return nil
		})
		said = s.problems("all.yaml")
		if err := s.answers(clusterIP); err != nil {
			t.Errorf("after the file broke: %v", err)
		}
	}
	s.write("", "10.244.1.3")
	s.eventually(time.Second, "corrected file", func() error {
		if got, err := s.udp(dnsIP); err != nil || got.Addr().String() != "10.244.1.3" {
			return fmt.Errorf("answered by %s, %v", got, err)
		}
		return nil
	})
}

// problems is what the status says about a manifest.
func (s *site) problems(file string) (text string) {
	s.t.Helper()
	doc, err := s.status()
	if err != nil {
		s.t.Fatal(err)
	}
	all := doc.Problems
	for _, svc := range doc.Services {
		all = append(all, svc.Problems...)
	}
	for _, p := range all {
		if strings.Contains(p.Where, file) {
			text += p.Where + ": " + p.Detail + "\n"
		}
	}
	return text
}
