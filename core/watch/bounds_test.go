// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tandem-proxy/tandem/core/watch/apitest"
)

// A redirect to another server is refused: every request has the token.
func TestRedirectKeepsTheToken(t *testing.T) {
	var reached atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	t.Cleanup(elsewhere.Close)
	for _, code := range []int{301, 302, 303, 307, 308} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, apitest.Options{Tokens: []string{"secret"}})
			lift := w.server.Fail(apitest.Rule{Resource: "services", Status: code, Location: elsewhere.URL + "/api/v1/services", Message: "moved"})
			w.run().until("the refusal", func() bool { return strings.Contains(w.resource("services").Err, "redirect rejected: API server") })
			lift()
			w.synced()
			w.becomes(initial)
		})
	}
	t.Cleanup(func() { // after the parallel ones
		if n := reached.Load(); n > 0 {
			t.Errorf("%d requests were sent elsewhere", n)
		}
	})
}

// Lists that are too large for one answer are read in smaller pages: whoever may write many large objects
// must not keep a proxy from starting, nor from listing again.
func TestLargeListsAreReadInSmallerPages(t *testing.T) {
	for name, o := range map[string]apitest.Options{"cached": {NoWatchList: true}, "uncached": {NoWatchList: true, NoCache: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, o)
			w.limits.answer = 256 << 10
			for i := range 80 { // 8 KB each
				large := sliceOf(fmt.Sprint("large", i), "10.0.0.9")
				large.Annotations = map[string]string{"text": strings.Repeat("x", 8<<10)}
				w.server.Put(large)
			}
			w.run().synced()
			if got := strings.Count(w.sink.state(), "slice default/large"); got != 80 {
				t.Errorf("synced with %d of 80 slices", got)
			}
			w.restarted(func() {
				w.server.Put(sliceOf("late", "10.0.0.9"))
				w.server.Compact() // so that it is listed again
			})
			w.until("the slice that came later", func() bool { return strings.Contains(w.sink.state(), "default/late") })
		})
	}
}

// Answers that do not end are cut off, with an error that names the limit, and
// cost little memory.
func TestAnswersAreBounded(t *testing.T) {
	endless := func(prefix, chunk string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			_, err := io.WriteString(w, prefix)
			for sent := 0; err == nil && sent < 2<<30; sent += len(chunk) {
				_, err = io.WriteString(w, chunk)
			}
		}
	}
	chunk := strings.Repeat("x", 64<<10)
	for name, c := range map[string]struct {
		rule apitest.Rule
		json bool
		want string
	}{
		"event as JSON":     {apitest.Rule{Status: 200, Media: "application/json", Body: endless(`{"type":"ADDED","object":{"kind":"Service","x":"`, chunk)}, true, "more than 8 MiB without completing an event"},
		"event as protobuf": {apitest.Rule{Status: 200, Media: "application/vnd.kubernetes.protobuf;stream=watch", Body: endless("\x7f\xff\xff\xff", chunk)}, false, "more than 8 MiB without completing an event"},
		"error":             {apitest.Rule{Status: 403, Media: "text/plain", Body: endless("no: ", chunk)}, false, "no: xxx"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, apitest.Options{})
			w.limits.silence = time.Hour // 8 MiB without an event may take a busy machine longer than the others' limit
			if c.json {
				w.config.API.ContentType = "application/json"
			}
			w.run().synced()
			lift := w.server.Fail(withResource(c.rule))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			w.server.Cut("services")
			w.until("the refusal", func() bool { return strings.Contains(w.resource("services").Err, c.want) })
			runtime.ReadMemStats(&after)
			if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 256<<20 {
				t.Errorf("the heap grew by %d MiB", grown>>20)
			}
			if n := len(w.resource("services").Err); n > 4<<10 {
				t.Errorf("an error text of %d bytes", n)
			}
			lift()
			w.change()
			w.noDeletes()
		})
	}
}

func withResource(r apitest.Rule) apitest.Rule {
	r.Resource = "services"
	return r
}

// A list that is too large is refused, and not read to its end.
func TestListsAreBounded(t *testing.T) {
	body := &boundedBody{io.NopCloser(zeros{}), &bound{most: maxAnswer, what: "in one answer"}}
	n, err := io.Copy(io.Discard, body)
	if err == nil || !strings.Contains(err.Error(), "response too large: more than 512 MiB in one answer") || n > maxAnswer {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// zeros is a reader that never ends.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// A list of items that are a few bytes each costs little memory, in both forms, as does one
// that has more items than a page.
func TestItemsAreBounded(t *testing.T) {
	const size = 1 << 20
	empty := append([]byte("k8s\x00\x0a\x11\x0a\x02v1\x12\x0bServiceList\x12"), protowire.AppendVarint(nil, size)...)
	empty = append(empty, bytes.Repeat([]byte{0x12, 0}, size/2)...)
	body := func(text []byte) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { _, _ = w.Write(text) }
	}
	many := []byte(`{"kind":"ServiceList","metadata":{"resourceVersion":"5","continue":"more"},"items":[{"metadata":{"name":"a","namespace":"b"}}` +
		strings.Repeat(`,{"metadata":{"name":"a","namespace":"b"}}`, 600) + `]}`)
	for name, c := range map[string]struct {
		media string
		body  []byte
		want  string
	}{
		"protobuf":   {"application/vnd.kubernetes.protobuf", empty, "an item has no name"},
		"JSON":       {"application/json", []byte(`{"kind":"ServiceList","items":[{}` + strings.Repeat(",{}", size/3) + "]}"), "an item has no name"},
		"many":       {"application/json", many, "more items than the limit of 500"},
		"not a list": {"application/json", []byte(`{"kind":"Table","items":[]}`), `a "Table", not a ServiceList`},
		"cut short":  {"application/vnd.kubernetes.protobuf", empty[:size/2], "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, apitest.Options{NoWatchList: true, NoCache: true})
			lift := w.server.Fail(apitest.Rule{Resource: "services", Verb: "list", Status: 200, Media: c.media, Body: body(c.body)})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			w.run().until("the refusal", func() bool { return strings.Contains(w.resource("services").Err, c.want) })
			runtime.ReadMemStats(&after)
			if made := after.TotalAlloc - before.TotalAlloc; made > 64<<20 {
				t.Errorf("%d MiB for an answer of %d bytes", made>>20, len(c.body))
			}
			lift()
			w.synced()
			w.becomes(initial)
		})
	}
}
