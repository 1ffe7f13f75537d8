// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
)

const many = 10_000 // Services and as many EndpointSlices

// manifest returns a Service and its slice as two documents.
func manifest(i int, endpoint string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata:
  name: web-%[1]d
  labels: {app: web, tier: "front"}
spec:
  clusterIP: 10.%[2]d.%[3]d.%[4]d
  selector:
    app: web
  ports:
  - name: http
    port: 80
    targetPort: 8080
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-%[1]d-x
  labels:
    kubernetes.io/service-name: web-%[1]d
addressType: IPv4
ports:
- name: http
  port: 8080
endpoints:
- addresses: [%[5]s]
  nodeName: node-1
  conditions: {ready: true}
- addresses: [10.244.2.3]
  nodeName: node-2
`, i, 96+i>>16, i>>8&255, i&255, endpoint)
}

func manifests(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("---\n")
		b.WriteString(manifest(i, "10.244.1.2"))
	}
	return b.String()
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkRead reads 20,000 objects from one file, and keeps them.
func BenchmarkRead(b *testing.B) {
	dir := b.TempDir()
	write(b, dir, "all.yaml", manifests(many))
	for b.Loop() {
		before := heap()
		r := newReader(originOf(dir), dir, config.PortRange{})
		f, err := r.scan(context.Background())
		if err != nil || len(f.objects) != 2*many || len(f.problems) > 0 {
			b.Fatal(err, len(f.objects), f.problems)
		}
		b.ReportMetric(float64(heap()-before)/(2*many), "heap-B/object")
		runtime.KeepAlive(r)
	}
}

// BenchmarkReadFiles reads 20,000 objects from as many files.
func BenchmarkReadFiles(b *testing.B) {
	dir := b.TempDir()
	for i := range many {
		s, e, _ := strings.Cut(manifest(i, "10.244.1.2"), "---\n")
		write(b, dir, fmt.Sprintf("s%d.yaml", i), s)
		write(b, dir, fmt.Sprintf("e%d.yaml", i), e)
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			if f, err := newReader(originOf(dir), dir, config.PortRange{}).scan(context.Background()); err != nil || len(f.objects) != 2*many {
				b.Fatal(err)
			}
		}
	})
	b.Run("again", func(b *testing.B) {
		r := newReader(originOf(dir), dir, config.PortRange{})
		for b.Loop() {
			if _, err := r.scan(context.Background()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkChange re-reads a file of 20,000 objects in which one has changed.
func BenchmarkChange(b *testing.B) {
	dir := b.TempDir()
	write(b, dir, "all.yaml", manifests(many))
	d := newDelivery(newRecord(), newReader(originOf(dir), dir, config.PortRange{}))
	if err := d.scan(context.Background()); err != nil {
		b.Fatal(err)
	}
	changed := strings.Split(manifests(many), "---\n")
	n := 0
	for b.Loop() {
		b.StopTimer()
		n++
		_, changed[many], _ = strings.Cut(manifest(many/2-1, fmt.Sprintf("10.244.%d.%d", n>>8, n&127+1)), "---\n")
		write(b, dir, "all.yaml", strings.Join(changed, "---\n"))
		b.StartTimer()
		if err := d.scan(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	if len(d.delivered.problems) > 0 || d.reader.decoded != 2*many+n {
		b.Fatal(d.delivered.problems, d.reader.decoded)
	}
}

func write(tb testing.TB, dir, name, text string) {
	tb.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
}
