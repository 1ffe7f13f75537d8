// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"crypto/sha256"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// TokenHeader carries a token beside Authorization, which the API server's proxy of pods
// removes from what it passes on, as it is the credential of the API server itself.
const TokenHeader = "X-Tandem-Token"

// Grant is what an API server says of a token.
type Grant uint8

// Grants.
const (
	Unauthenticated Grant = iota // the token is invalid, or for another audience
	Forbidden                    // its user may not read the page
	Granted
)

// Review asks an API server whether the bearer of a token may get a path of this server.
type Review func(ctx context.Context, token, path string) (Grant, error)

// The bounds of reviews. One address asks for one at a time, and the rate of all is Review's
// affair, so that addresses take turns. What was granted once is for a while.
const (
	reviewTimeout = 10 * time.Second
	maxReviews    = 32 // under way, each of another address
	grantAge      = time.Minute
	maxGrants     = 64
)

// access admits to a page clients with a token that an API server grants it to.
type access struct {
	review Review // nil without an API server
	path   string

	mu      sync.Mutex
	asking  map[netip.Addr]bool
	granted map[[sha256.Size]byte]time.Time // by token: until when
}

// restrict returns a page for those who are admitted to it: clients on loopback addresses, and others with a
// token that an API server grants it to.
func restrict(path string, review Review, h http.Handler) http.Handler {
	return byPlace(RejectRebinding(h), granted(path, review, h))
}

// granted returns a page for clients with a token that an API server grants it to, wherever they are.
func granted(path string, review Review, h http.Handler) http.Handler {
	a := &access{review: review, path: path, asking: map[netip.Addr]bool{}, granted: map[[sha256.Size]byte]time.Time{}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if code, why := a.admit(r); code != http.StatusOK {
			if code == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			http.Error(w, why, code)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// admit decides about a request.
func (a *access) admit(r *http.Request) (code int, why string) {
	if a.review == nil {
		return http.StatusForbidden, "there is no API server to check a token: allowed on this node only"
	}
	token := r.Header.Get(TokenHeader)
	if bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok && token == "" {
		token = bearer
	}
	if token = strings.TrimSpace(token); token == "" {
		return http.StatusUnauthorized, "a token is needed, as of kubectl create token --audience tandem"
	}
	key := sha256.Sum256([]byte(token))
	if a.known(key) {
		return http.StatusOK, ""
	}
	from := clientOf(r.RemoteAddr)
	if !a.begin(from) {
		return http.StatusTooManyRequests, "another token of this address is being checked"
	}
	defer a.end(from)
	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	switch grant, err := a.review(ctx, token, a.path); {
	case err != nil:
		return http.StatusServiceUnavailable, err.Error()
	case grant == Unauthenticated:
		return http.StatusUnauthorized, "the API server does not know this token, or not for the audience tandem"
	case grant != Granted:
		return http.StatusForbidden, "the user of this token may not get the nonResourceURL " + a.path
	}
	a.keep(key)
	return http.StatusOK, ""
}

// known reports whether a token was granted the page not long ago.
func (a *access) known(key [sha256.Size]byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Now().Before(a.granted[key])
}

// keep remembers that a token was granted the page. At the limit the oldest is forgotten.
func (a *access) keep(key [sha256.Size]byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.granted) >= maxGrants {
		first := key
		for k, until := range a.granted {
			if first == key || until.Before(a.granted[first]) {
				first = k
			}
		}
		delete(a.granted, first)
	}
	a.granted[key] = time.Now().Add(grantAge)
}

// begin reserves an address's review.
func (a *access) begin(from netip.Addr) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.asking[from] || len(a.asking) >= maxReviews {
		return false
	}
	a.asking[from] = true
	return true
}

func (a *access) end(from netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.asking, from)
}
