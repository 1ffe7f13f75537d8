// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
)

// FuzzRead feeds any text to the reader. It must come back, every problem must
// fit on a line and name a line that exists, every object must be reported
// where it is, and a second reading must find nothing new.
func FuzzRead(f *testing.F) {
	for _, s := range []string{
		"", "---", svc("web"), manifest(0, "10.244.1.2"), manifests(2), head + bombSmall, "kind: List\napiVersion: v1\nitems:\n- " + svc("a") + "- " + svc("b"),
		`{"kind":"ServiceList","apiVersion":"v1","items":[{"metadata":{"name":"a"}}]}`, "\xff\xfe-\x00", "{{ .x }}", "a: &a [*a]", "<<: {a: b}",
		head + "spec: {ports: [{port: http}]}", "--- # x\r\na: b\r\n...\r\n", "%YAML 1.1\n---\n" + svc("x"),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		fsys := fstest.MapFS{"x.yaml": {Data: data}}
		r := newReader(whole{fsys}, "", config.PortRange{})
		r.limits.yaml.JSONBytes, r.limits.yaml.Work, r.limits.documents = 1<<20, 100_000, 1000
		begin := time.Now()
		first, err := r.scan(context.Background())
		if took := time.Since(begin); took > 5*time.Second {
			t.Fatalf("%d bytes took %s", len(data), took)
		}
		if err != nil {
			t.Fatal(err)
		}
		lines := bytes.Count(data, []byte("\n")) + bytes.Count(data, []byte("\r")) + 1
		for _, p := range first.problems {
			if s := p.String(); strings.ContainsAny(s, "\n\r\x1b") || p.Line < 0 || p.Line > lines || p.Object == "" || p.Text == "" {
				t.Fatalf("problem %q of %d lines", s, lines)
			}
		}
		for _, p := range first.objects {
			if o := p.moved(); o.usable() && *o.where() != p.whereNow() || p.line+int(p.start) < 1 || p.line+int(p.start) > lines || badName(p.key) != "" {
				t.Fatalf("object %v in %q, %q", p.key, *o.where(), p.whereNow())
			}
		}
		decoded := r.decoded
		second, err := r.scan(context.Background())
		if err != nil || r.decoded != decoded || len(second.objects) != len(first.objects) || len(second.problems) != len(first.problems) {
			t.Fatalf("second reading: %v, %d decoded", err, r.decoded-decoded)
		}
	})
}

const bombSmall = "x: {a: &a [1,1], b: &b [*a,*a], c: [*b,*b]}\n"
