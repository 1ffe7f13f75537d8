// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/core/watch/apitest"
)

const changed = "node node-1 a leaving=false, service default/web 81, slice default/web-x 1"

// change makes a change and waits for it.
func (w *world) change() {
	w.t.Helper()
	w.server.Put(service("web", 81))
	w.becomes(changed)
	w.server.Put(service("web", 80))
	w.becomes(initial)
}

// How long a change made while the server was away takes to arrive once it is
// back is asserted generously here: the tests run beside others. The bound that
// holds is that of pace: see TestPace.
func TestServerIsDown(t *testing.T) {
	for name, o := range servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, o)
			w.server.Stop() // at the start
			w.run().until("a failure", func() bool { return w.resource("services").Failures > 2 })
			if err := w.server.Restart(); err != nil {
				t.Fatal(err)
			}
			w.synced()
			w.becomes(initial)
			w.server.Stop() // and later
			w.server.Put(service("web", 81))
			w.until("the warning", func() bool { return strings.Contains(w.logs.String(), "connection refused") })
			lists := len(w.server.Requests("list", "services"))
			if err := w.server.Restart(); err != nil {
				t.Fatal(err)
			}
			back := time.Now()
			w.becomes(changed)
			t.Logf("a change arrived %s after the server's return", time.Since(back).Round(time.Millisecond))
			w.noDeletes()
			if again := len(w.server.Requests("list", "services")); again != lists {
				t.Error("everything was listed again")
			}
			w.until("the good news", func() bool { return strings.Contains(w.logs.String(), "watch of the API server recovered") })
			if n := strings.Count(w.logs.String(), "connection refused"); n > 2 {
				t.Errorf("logged %d times that the connection was refused", n)
			}
		})
	}
}

func TestPace(t *testing.T) {
	var p backoff
	var total time.Duration
	refused := &net.OpError{Op: "dial", Err: io.EOF}
	for range 100 {
		if d := p.after(refused); d < unansweredFirst || d > 750*time.Millisecond {
			t.Fatalf("no answer: %s", d)
		}
	}
	p.reset()
	busy := statusError(503, metav1.StatusReasonServiceUnavailable, 0)
	for range 20 {
		d := p.after(busy)
		if total += d; d < rejectedFirst || d > 45*time.Second {
			t.Fatalf("busy: %s", d)
		}
	}
	if total < 5*time.Minute { // twenty requests
		t.Errorf("a server that cannot answer is asked 20 times in %s", total)
	}
	p.reset()
	if d := p.after(statusError(429, metav1.StatusReasonTooManyRequests, 7)); d < 7*time.Second || d > 9*time.Second {
		t.Errorf("Retry-After 7: %s", d)
	}
	p.reset()
	total = 0
	for range 20 {
		total += p.after(statusError(429, metav1.StatusReasonTooManyRequests, 1))
	}
	if total < 5*time.Minute {
		t.Errorf("a server that answers Retry-After 1 each time is asked 20 times in %s", total)
	}
	if d := p.after(statusError(429, metav1.StatusReasonTooManyRequests, 1<<30)); d > 3*time.Minute {
		t.Errorf("an absurd Retry-After: %s", d)
	}
	p.reset()
	if d := p.after(busy); d > 200*time.Millisecond {
		t.Errorf("after a success: %s", d)
	}
}

// Errors of the server pass, whatever they are.
func TestServerErrors(t *testing.T) {
	for name, rule := range map[string]apitest.Rule{
		"500":               {Status: 500, Reason: metav1.StatusReasonInternalError, Message: "boom"},
		"503 from a proxy":  {Status: 503, Message: "<html>no backend</html>"},
		"429":               {Status: 429, RetryAfter: 1, Message: "Too many requests, please try again later."},
		"401":               {Status: 401, Reason: metav1.StatusReasonUnauthorized, Message: "Unauthorized"},
		"410 at the start":  {Status: 410, Reason: metav1.StatusReasonExpired, Message: "too old"},
		"slow":              {Delay: 300 * time.Millisecond},
		"not an API server": {Status: 200, Message: "welcome to the captive portal"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, apitest.Options{NoWatchList: len(name)%2 == 0})
			rule.Resource, rule.Times = "services", 2
			w.server.Fail(rule)
			w.run().synced()
			w.becomes(initial)
			w.server.Fail(rule)
			w.server.Cut("services")
			w.change()
			w.noDeletes()
		})
	}
}

// A server that starts refuses everybody for a moment. That is no news.
func TestServerStarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apitest.Options{})
	w.server.Fail(apitest.Rule{Times: 4, Status: 403, Reason: metav1.StatusReasonForbidden, Message: "RBAC is not ready"})
	w.run().synced()
	w.until("the ranges", func() bool { return len(w.sink.ranges("kubernetes")) > 0 })
	if text := w.logs.String(); text != "" {
		t.Errorf("logged: %s", text)
	}
}

// A server that asks for time gets it.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apitest.Options{})
	w.server.Fail(apitest.Rule{Resource: "services", Times: 2, Status: 429, RetryAfter: 1, Message: "later"})
	w.run().synced()
	rs := w.server.Requests("watch", "services")
	if len(rs) != 3 {
		t.Fatalf("%d requests", len(rs))
	}
	for i := range 2 {
		if gap := rs[i+1].At.Sub(rs[i].At); gap < time.Second {
			t.Errorf("asked again after %s", gap)
		}
	}
	if n := w.resource("services").Lists; n != 1 {
		t.Errorf("%d lists, of which two were rejected", n)
	}
}

// Changes that were compacted away make it list again, and find what is gone.
func TestGone(t *testing.T) {
	for name, o := range servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, o)
			w.server.Put(service("old", 1))
			w.run().synced()
			before := 0
			w.restarted(func() {
				w.server.Delete(service("old", 1))
				w.server.Put(service("new", 2))
				w.server.Compact()
				_, before, _ = w.sink.told()
			})
			w.becomes("node node-1 a leaving=false, service default/new 2, service default/web 80, slice default/web-x 1")
			if _, sets, deletes := w.sink.told(); sets != before+1 || len(deletes) != 1 {
				t.Errorf("%d sets and %v deletes: unchanged objects were passed again", sets-before, deletes)
			}
			w.server.Put(service("new", 3))
			w.until("the next change", func() bool { return strings.Contains(w.sink.state(), "service default/new 3") })
		})
	}
}

// A server whose etcd was restored knows less than we do, and is right.
func TestRestoredBackup(t *testing.T) {
	for _, o := range []apitest.Options{{}, {NoWatchList: true}} {
		t.Run(fmt.Sprint(o.NoWatchList), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, o)
			w.server.Put(service("late", 1), service("web", 90))
			w.run().synced()
			asked := w.streamed("services")
			w.restarted(func() { w.server.Restore(50, service("web", 80), sliceOf("web", "10.0.0.1"), nodeIn("a")) })
			w.becomes(initial)
			w.change()
			if o.NoWatchList && w.streamed("services") != asked {
				t.Error("a server that does not stream lists was asked to again")
			}
		})
	}
}

// One that has passed the version that we know resumes watches as if nothing were lost.
func TestRestoredBackupThatWentOn(t *testing.T) {
	// The undone change is the latest of its kind that we know.
	for name, undone := range map[string]func(*apitest.Server){
		"changed": func(s *apitest.Server) { s.Put(service("late", 1), service("web", 90)) },
		"created": func(s *apitest.Server) { s.Put(service("web", 90), service("late", 1)) },
		"created and deleted": func(s *apitest.Server) {
			s.Put(service("web", 90), service("late", 1), service("gone", 1))
			s.Delete(service("gone", 1))
		},
		"deleted": func(s *apitest.Server) { s.Put(service("late", 1)); s.Delete(service("web", 80)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, apitest.Options{})
			w.run().synced()
			restore := w.server.Backup()
			undone(w.server)
			w.until("the change", func() bool {
				return strings.Contains(w.sink.state(), "late") && !strings.Contains(w.sink.state(), "web 80")
			})
			w.restarted(func() {
				restore()
				w.server.Put(service("web", 70), nodeIn("a"), nodeIn("a"), nodeIn("a"), service("web", 80)) // numbers of lost versions again
			})
			w.becomes(initial)
			w.change()
		})
	}
}

// The same where the server passes the version that we know just when it is asked, or does not
// say what it had at that version.
func TestRestoredBackupThatGoesOn(t *testing.T) {
	for name, rule := range map[string]apitest.Rule{
		"while the watch is opened": {Resource: "services", Verb: "watch", Delay: time.Second, Times: 1},
		"while it is asked":         {Resource: "services", Verb: "list", Delay: time.Second, Times: 1},
		"and fails":                 {Resource: "services", Verb: "list", Status: 500, Message: "boom", Times: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, apitest.Options{})
			w.run().synced()
			restore := w.server.Backup()
			w.server.Put(service("late", 1), service("web", 90))
			w.until("the change", func() bool { return strings.Contains(w.sink.state(), "web 90") })
			w.server.Stop()
			restore()
			defer w.server.Fail(rule)()
			asked := func() int {
				return len(w.server.Requests("watch", "services")) + len(w.server.Requests("list", "services"))
			}
			before := asked()
			if err := w.server.Restart(); err != nil {
				t.Fatal(err)
			}
			w.until("the first request", func() bool { return asked() > before })
			w.server.Put(service("web", 70), nodeIn("a"), nodeIn("a"), nodeIn("a"), service("web", 80)) // numbers of lost versions again
			w.becomes(initial)
			w.change()
		})
	}
}

// The same where a list has shown that an object was deleted, and nothing else tells the two
// histories apart.
func TestRestoredBackupOfWhatAListLacked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apitest.Options{})
	w.run().synced()
	w.server.Put(service("kept", 1), service("web", 80))
	w.until("the Service", func() bool { return strings.Contains(w.sink.state(), "kept") })
	restore := w.server.Backup()
	w.restarted(func() { w.server.Delete(service("kept", 1)); w.server.Compact() })
	w.until("the deletion", func() bool { return !strings.Contains(w.sink.state(), "kept") })
	w.restarted(func() { restore(); w.server.Put(nodeIn("a"), nodeIn("a"), nodeIn("a")) }) // numbers of lost versions again
	w.until("the Service again", func() bool { return strings.Contains(w.sink.state(), "kept") })
}

// The same where the deletion that was undone is made again, earlier than it was.
func TestRestoredBackupWhereTheSameIsDeletedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apitest.Options{})
	w.run().synced()
	w.server.Put(service("gone", 1), service("late", 1))
	w.until("the Services", func() bool { return strings.Contains(w.sink.state(), "late") })
	restore := w.server.Backup()
	w.server.Put(nodeIn("a"))
	w.server.Delete(service("gone", 1))
	w.until("the deletion", func() bool { return !strings.Contains(w.sink.state(), "gone") })
	w.restarted(func() {
		restore()
		w.server.Delete(service("gone", 1))
		w.server.Put(service("web", 70))
	})
	w.until("the change that no watch repeats", func() bool { return strings.Contains(w.sink.state(), "web 70") })
}

// The same where only another kind's object tells the two histories apart, as bookmarks have taken the watch of Services on.
func TestRestoredBackupThatAnotherKindTells(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apitest.Options{Bookmarks: 20 * time.Millisecond})
	w.run().synced()
	w.server.Put(service("late", 1))
	w.until("a Service that stays as it is", func() bool { return strings.Contains(w.sink.state(), "late") })
	restore := w.server.Backup()
	w.server.Put(nodeIn("b"), sliceOf("web", "10.0.0.1"), sliceOf("web", "10.0.0.1"))
	w.until("what is lost", func() bool { return strings.Contains(w.sink.state(), "node-1 b") })
	at := w.resource("endpointslices").Version
	w.until("bookmarks", func() bool { return w.resource("services").Version == at })
	w.restarted(func() {
		restore()
		w.server.Put(service("web", 70), sliceOf("web", "10.0.0.1"), sliceOf("web", "10.0.0.1")) // numbers of lost versions again
	})
	w.until("the change that no watch repeats", func() bool { return strings.Contains(w.sink.state(), "web 70") })
}

func TestCutAndTorn(t *testing.T) {
	for name, o := range servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, o)
			w.run().synced()
			for range 3 {
				w.server.Cut("services")
				w.change()
				w.server.Tear("services")
				w.change()
			}
			w.noDeletes()
		})
	}
}

// Events that are sent twice, or after their successors, change nothing.
func TestReplay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apitest.Options{})
	w.run().synced()
	w.server.Put(service("gone", 1), service("web", 81), service("web", 82))
	w.server.Delete(service("gone", 1))
	w.server.Put(service("web", 80), service("mark", 1))
	w.until("the changes", func() bool { return strings.Contains(w.sink.state(), "default/mark") })
	_, before, _ := w.sink.told()
	events := w.resource("services").Events
	w.server.Replay("services", 6)
	w.until("the replay", func() bool { return w.resource("services").Events >= events+6 })
	w.server.Put(service("last", 9))
	w.becomes("node node-1 a leaving=false, service default/last 9, service default/mark 1, service default/web 80, slice default/web-x 1")
	if _, sets, deletes := w.sink.told(); sets != before+1 || len(deletes) != 1 {
		t.Errorf("%d sets, deletes %v", sets-before, deletes)
	}
}

// A watch that hangs is noticed, reported, and begun again.
func TestHang(t *testing.T) {
	for _, o := range []apitest.Options{{}, {Plain: true}} {
		t.Run(fmt.Sprint(o.Plain), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, o)
			w.limits.silence, w.limits.stale = 500*time.Millisecond, 2500*time.Millisecond
			w.run().synced()
			thaw := w.server.Freeze("services")
			lift := w.server.Fail(apitest.Rule{Resource: "services", Hang: true})
			w.server.Put(service("web", 81))
			stale := func() string { return strings.Join(w.source.Stale(time.Now()), "; ") }
			w.until("the report, of Services alone", func() bool {
				all := w.source.Stale(time.Now())
				return len(all) == 1 && strings.HasPrefix(all[0], "watch of services silent for")
			})
			for _, r := range w.source.Resources() {
				if age := r.Age(time.Now()); r.Name == "services" && age < w.limits.stale {
					t.Errorf("age %s", age)
				}
			}
			lift()
			thaw()
			w.becomes(changed)
			w.until("good health", func() bool { return stale() == "" })
		})
	}
}

// A server that has sent bookmarks, and whose watches begin and bring nothing any
// more, is reported as well.
func TestHangBehindAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apitest.Options{Bookmarks: 50 * time.Millisecond})
	w.limits.silence, w.limits.stale = 500*time.Millisecond, 1500*time.Millisecond
	w.run().synced()
	w.until("bookmarks", func() bool { return w.resource("services").Events > 3 })
	thaw := w.server.Freeze("services")
	stale := func() string { return strings.Join(w.source.Stale(time.Now()), "; ") }
	w.until("the report", func() bool { return strings.HasPrefix(stale(), "watch of services silent for") })
	thaw()
	w.until("good health", func() bool { return stale() == "" })
}

// A quiet watch of a server that sends no bookmarks is no reason to worry: it is
// begun again, and nothing is passed twice.
func TestQuiet(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apitest.Options{})
	w.limits.silence, w.limits.stale = 300*time.Millisecond, time.Minute
	w.run().synced()
	_, before, _ := w.sink.told()
	begun := w.resource("services")
	w.until("three more watches in a row, without a failure", func() bool {
		r := w.resource("services")
		if r.Failures != begun.Failures { // this machine stood still while a watch began
			begun = r
		}
		return r.Watches >= begun.Watches+3 && r.Contact.After(begun.Contact)
	})
	if stale := w.source.Stale(time.Now()); len(stale) > 0 || w.resource("services").Lists != begun.Lists {
		t.Errorf("stale: %v; %+v", stale, w.resource("services"))
	}
	if _, sets, _ := w.sink.told(); sets != before {
		t.Errorf("%d passed again", sets-before)
	}
}

// Bookmarks are signs of life, and where a watch resumes after a break.
func TestBookmarks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apitest.Options{Bookmarks: 100 * time.Millisecond})
	w.limits.silence = 3 * time.Second
	w.run().synced()
	at := w.server.Put(sliceOf("web", "10.0.0.1", "10.0.0.2"))
	events := w.resource("services").Events
	w.until("bookmarks", func() bool { return w.resource("services").Events > events+2 })
	w.server.Compact() // what was before the bookmark is not needed
	w.server.Cut("services")
	w.until("a new watch", func() bool { return len(w.server.Requests("watch", "services")) > 1 }) // the old one may still take a change
	w.server.Put(service("web", 81))
	w.becomes("node node-1 a leaving=false, service default/web 81, slice default/web-x 2")
	if r := w.resource("services"); r.Lists != 1 {
		t.Errorf("listed %d times", r.Lists)
	}
	rs := w.server.Requests("watch", "services")
	if got := rs[len(rs)-1].Query.Get("resourceVersion"); got != fmt.Sprint(at) {
		t.Errorf("resumes at %s, the bookmark was of %d", got, at)
	}
}

// The HTTP/2 connection under a watch is tested with pings: one whose packets
// are lost is given up long before the watch is.
func TestLostPackets(t *testing.T) {
	t.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "1")
	t.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "1")
	w := newWorld(t, apitest.Options{})
	hole := newHole(t, w.server.Address())
	w.config.API.Server = "https://" + hole.listener.Addr().String()
	w.limits.silence = time.Hour
	w.run().synced()
	hole.swallow()
	w.server.Put(service("web", 81))
	w.becomes(changed)
	w.noDeletes()
}

// hole forwards connections to an address, until it swallows what comes.
type hole struct {
	listener net.Listener
	mu       sync.Mutex
	deaf     []chan struct{}
}

func newHole(t *testing.T, address string) *hole {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &hole{listener: l}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", address)
			if err != nil {
				c.Close()
				continue
			}
			deaf := make(chan struct{})
			h.mu.Lock()
			h.deaf = append(h.deaf, deaf)
			h.mu.Unlock()
			go pipe(s, c, deaf)
			go pipe(c, s, deaf)
		}
	}()
	return h
}

// swallow drops everything that is sent over the connections that are open now.
func (h *hole) swallow() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.deaf {
		close(d)
	}
	h.deaf = nil
}

func pipe(to, from net.Conn, deaf chan struct{}) {
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		select {
		case <-deaf:
			continue
		default:
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// A token that expires is read again as soon as the server refuses it.
func TestTokenIsRenewed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apitest.Options{Tokens: []string{"first"}})
	token := w.file("token", "first\n")
	w.config.API.Kubeconfig = w.file("kubeconfig", w.server.Kubeconfig("{tokenFile: "+token+"}"))
	w.run().synced()
	w.server.Accept("second")
	w.server.Cut("services")
	w.until("a refusal", func() bool { return strings.Contains(w.resource("services").Err, "rejected the credentials") })
	if err := os.WriteFile(token, []byte("second"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.change()
	w.noDeletes()
	if n := w.resource("services").Failures; n > 12 {
		t.Errorf("%d requests were refused", n)
	}
}

// A permission that is missing is named, with the rule to add.
func TestForbidden(t *testing.T) {
	for resource, group := range map[string]string{"services": "", "endpointslices": "discovery.k8s.io", "nodes": ""} {
		t.Run(resource, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, apitest.Options{})
			message := fmt.Sprintf("%s is forbidden: User %q cannot watch resource %q in API group %q at the cluster scope", resource, "tandem", resource, group)
			lift := w.server.Fail(apitest.Rule{Resource: resource, Status: 403, Reason: metav1.StatusReasonForbidden, Message: message})
			w.run().until("the explanation", func() bool { return w.resource(resource).Err != "" })
			want := fmt.Sprintf(`%s; bind the user to the ClusterRole system:node-proxier, or add to its role: {apiGroups: [%q], resources: [%q], verbs: ["list", "watch"]}`, message, group, resource)
			if got := w.resource(resource).Err; got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			if stale := strings.Join(w.source.Stale(time.Now()), ""); !strings.Contains(stale, "add to its role") {
				t.Errorf("stale: %s", stale)
			}
			if resource == "nodes" { // the other resources continue
				w.synced()
				if synced, _, _ := w.sink.told(); synced[0] {
					t.Error("whole, though the Node cannot be read")
				}
			}
			lift()
			w.becomes(initial)
			w.until("whole", func() bool { synced, _, _ := w.sink.told(); return len(synced) > 0 && synced[len(synced)-1] })
		})
	}
}

// A list that comes in pages and expires in between is begun again.
func TestPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apitest.Options{NoWatchList: true, NoCache: true})
	for i := range 1300 {
		w.server.Put(service(fmt.Sprintf("s%04d", i), 80))
	}
	w.run().synced()
	if n := w.resource("services").Objects; n != 1301 {
		t.Errorf("%d Services", n)
	}
	if n := len(w.server.Requests("list", "services")); n != 3 {
		t.Errorf("%d pages", n)
	}
	w.restarted(func() {
		w.server.Compact()
		w.server.Put(service("web", 81))
		w.server.Compact()
		w.server.Fail(apitest.Rule{Resource: "services", Verb: "list", Times: 2, Status: 410, Reason: metav1.StatusReasonExpired, Message: "the continue token is too old"})
	})
	w.until("the change", func() bool { return strings.Contains(w.sink.state(), "service default/web 81") })
	w.noDeletes()
}
