// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// Options state what kind of server it is. The zero value is a new one over HTTP/2.
type Options struct {
	Plain       bool          // HTTP without TLS, and so HTTP/1.1
	NoWatchList bool          // it refuses streaming lists, as before Kubernetes 1.32
	OldWatch    bool          // it does not know sendInitialEvents: its watches never say that the list is complete
	OldFields   bool          // it selects by no field of a spec, as before Kubernetes 1.31
	NoCache     bool          // it has no watch cache: lists come in pages, whatever is requested
	Absent      []string      // resources that it does not have
	Bookmarks   time.Duration // between bookmarks; 0 for none
	Tokens      []string      // that are accepted; none: anonymous requests, too

	// Listen makes the server's listener, each time that it starts; nil is a port of
	// the loopback interface, the same every time.
	Listen func() (net.Listener, error)
}

// Server is an API server. It is safe for concurrent use.
type Server struct {
	options   Options
	codecs    serializer.CodecFactory
	resources map[string]*resource
	store     *store

	mu       sync.Mutex
	http     *httptest.Server // nil while stopped
	address  string
	tokens   []string
	rules    []*Rule
	frozen   map[string]int
	streams  map[*stream]bool
	requests []Request
}

// Request is one that was answered, or is being.
type Request struct {
	Verb, Resource string
	Query          url.Values
	Accept, Token  string
	At             time.Time
	Failed         bool // by a Rule, or as its token is not valid
}

// Start starts a server on a port of its own of the loopback interface.
func Start(o Options) (*Server, error) {
	s := &Server{
		options: o, codecs: newCodecs(), resources: resources(), store: newStore(),
		address: "127.0.0.1:0", tokens: o.Tokens, frozen: map[string]int{}, streams: map[*stream]bool{},
	}
	for _, r := range o.Absent {
		delete(s.resources, r)
	}
	return s, s.Restart()
}

// Restart starts a stopped server on the same port, with the same objects.
func (s *Server) Restart() error {
	listen := s.options.Listen
	if listen == nil {
		listen = func() (net.Listener, error) { return net.Listen("tcp", s.address) }
	}
	l, err := listen()
	if err != nil {
		return err
	}
	h := &httptest.Server{Listener: l, EnableHTTP2: true, Config: &http.Server{Handler: s}}
	if s.options.Plain {
		h.Start()
	} else {
		h.StartTLS()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.http, s.address = h, l.Addr().String()
	return nil
}

// Stop cuts all connections and refuses new ones.
func (s *Server) Stop() {
	s.mu.Lock()
	h := s.http
	s.http = nil
	s.mu.Unlock()
	if h != nil {
		h.Listener.Close()
		h.CloseClientConnections()
		h.Close()
	}
}

// URL returns the server's address.
func (s *Server) URL() string {
	if s.options.Plain {
		return "http://" + s.Address()
	}
	return "https://" + s.Address()
}

// Address returns the server's host and port.
func (s *Server) Address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.address
}

// CA returns the certificate to trust, as PEM; nil without TLS.
func (s *Server) CA() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http == nil || s.http.Certificate() == nil {
		return nil
	}
	return encodePEM(s.http.Certificate().Raw)
}

// Serve has a resource served in a version of its group from now on, or not at all for
// "", as where a CustomResourceDefinition is changed: its watches end.
func (s *Server) Serve(name, version string) {
	r := resources()[name]
	r.version.Version = version
	s.mu.Lock()
	if delete(s.resources, name); version != "" {
		s.resources[name] = r
	}
	s.mu.Unlock()
	s.Cut(name)
}

// Accept replaces the tokens that are accepted; with none, anonymous requests are, too.
func (s *Server) Accept(tokens ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens = tokens
}

// Put creates or replaces objects, and returns the version of the last.
func (s *Server) Put(objects ...runtime.Object) (version uint64) {
	for _, o := range objects {
		version = s.store.put(o)
	}
	return version
}

// Delete deletes objects.
func (s *Server) Delete(objects ...runtime.Object) {
	for _, o := range objects {
		s.store.delete(o)
	}
}

// Objects returns what there is of a resource, by namespace and name. It is not
// to be changed.
func (s *Server) Objects(resource string) []runtime.Object {
	all, _ := s.store.snapshot(resource, everything())
	return all
}

// Compact drops the log of changes: clients that missed one must list again.
func (s *Server) Compact() { s.store.compact() }

// Restore replaces all objects, as from a backup of an earlier version.
func (s *Server) Restore(version uint64, objects ...runtime.Object) {
	s.store.restore(version, objects)
}

// Backup returns what restores the server to this moment, once, as from a backup of
// etcd. It must be stopped meanwhile.
func (s *Server) Backup() (restore func()) { return s.store.backup() }

// Fail adds a rule. The first one that matches a request is used. lift removes the
// rule.
func (s *Server) Fail(r Rule) (lift func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &r
	s.rules = append(s.rules, p)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.rules = slices.DeleteFunc(s.rules, func(o *Rule) bool { return o == p })
	}
}

// rule returns the rule for a request, and counts its use.
func (s *Server) rule(verb, resource string, lists bool) (Rule, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range s.rules {
		if (r.Resource != "" && r.Resource != resource) || (r.Verb != "" && r.Verb != verb) || r.Lists && !lists {
			continue
		}
		if r.Times--; r.Times == 0 {
			s.rules = slices.Delete(s.rules, i, i+1)
		}
		return *r, true
	}
	return Rule{}, false
}

// Freeze makes the open streams of a resource, and those to come, send nothing more,
// though their connections stay open. thaw ends that.
func (s *Server) Freeze(resource string) (thaw func()) {
	s.mu.Lock()
	s.frozen[resource]++
	s.mu.Unlock()
	s.order(resource, order{}) // those that wait look
	return func() {
		s.mu.Lock()
		s.frozen[resource]--
		s.mu.Unlock()
		s.order(resource, order{})
	}
}

func (s *Server) isFrozen(resource string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.frozen[resource] > 0
}

// Cut ends the open streams of a resource as a stopping server does.
func (s *Server) Cut(resource string) { s.order(resource, order{end: true}) }

// Tear cuts the open streams of a resource in the middle of an event: half of a
// bookmark is sent, and the connection reset.
func (s *Server) Tear(resource string) { s.order(resource, order{tear: true}) }

// Replay makes the open streams of a resource send their last changes again, the
// newest first: duplicates, and in the wrong order.
func (s *Server) Replay(resource string, changes int) { s.order(resource, order{replay: changes}) }

func (s *Server) order(resource string, o order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		if st.resource.name == resource {
			select {
			case st.orders <- o:
			default: // its queue is full
			}
		}
	}
}

// Requests returns the requests so far. Empty names mean all.
func (s *Server) Requests(verb, resource string) []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rs []Request
	for _, r := range s.requests {
		if (verb == "" || r.Verb == verb) && (resource == "" || r.Resource == resource) {
			rs = append(rs, r)
		}
	}
	return rs
}

// Delivered reports whether a watch of a resource is open, and has been sent all that has changed.
func (s *Server) Delivered(resource string) bool {
	latest := s.store.latest()
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		if st.resource.name == resource && st.at.Load() >= latest {
			return true
		}
	}
	return false
}

// Streams returns how many watches of a resource are open.
func (s *Server) Streams(resource string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		if st.resource.name == resource {
			n++
		}
	}
	return n
}

func (s *Server) note(r Request) {
	const most = 100_000
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) < most {
		s.requests = append(s.requests, r)
	}
}

func (s *Server) authentic(token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tokens) == 0 || slices.Contains(s.tokens, token)
}

// Kubeconfig returns a kubeconfig for the server. User is its user's entry as
// YAML in braces, such as "{tokenFile: /run/token}".
func (s *Server) Kubeconfig(user string) string {
	ca := ""
	if pem := s.CA(); pem != nil {
		ca = ", certificate-authority-data: " + base64Of(pem)
	}
	return strings.Join([]string{
		"apiVersion: v1", "kind: Config", "current-context: test",
		fmt.Sprintf("clusters: [{name: test, cluster: {server: %q%s}}]", s.URL(), ca),
		"contexts: [{name: test, context: {cluster: test, user: test}}]",
		"users: [{name: test, user: " + user + "}]", "",
	}, "\n")
}

func encodePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func base64Of(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
