// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/tandem-proxy/tandem/core/config"
)

// judge is the part of an API server that knows tokens and rights. It reads and writes the
// types of the API, so that the names of our fields are checked.
type judge struct {
	t         *testing.T
	users     map[string]authenticationv1.UserInfo // by token
	audiences []string                             // of the tokens; nil as of a server that knows none
	reader    string                               // the user that may get /status
	refuse    int
}

func (j *judge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	read := func(doc any) {
		d := json.NewDecoder(r.Body)
		d.DisallowUnknownFields()
		if err := d.Decode(doc); err != nil || r.Method != http.MethodPost {
			j.t.Errorf("%s %s: %v", r.Method, r.URL.Path, err)
		}
	}
	if j.refuse != 0 {
		w.WriteHeader(j.refuse)
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": j.refuse, "message": "no"})
		return
	}
	switch r.URL.Path {
	case "/apis/authentication.k8s.io/v1/tokenreviews":
		var review authenticationv1.TokenReview
		read(&review)
		if !reflect.DeepEqual(review.Spec.Audiences, []string{"tandem"}) {
			j.t.Errorf("for audiences %q", review.Spec.Audiences)
		}
		if user, ok := j.users[review.Spec.Token]; ok {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: user, Audiences: j.audiences}
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(review)
	case "/apis/authorization.k8s.io/v1/subjectaccessreviews":
		var review authorizationv1.SubjectAccessReview
		read(&review)
		if of := review.Spec.NonResourceAttributes; of == nil || of.Verb != "get" || of.Path != "/status" {
			j.t.Errorf("asked about %+v", of)
		}
		want := j.users[review.Spec.User]
		if review.Spec.UID != want.UID || !reflect.DeepEqual(review.Spec.Groups, want.Groups) || len(review.Spec.Extra) != len(want.Extra) {
			j.t.Errorf("about %+v, want %+v", review.Spec, want)
		}
		review.Status.Allowed = review.Spec.User == j.reader
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(review)
	default:
		j.t.Errorf("requested %s", r.URL.Path)
	}
}

// Whose a token is and what they may is the API server's to say, and a token for another
// audience is nobody's.
func TestTokensAreReviewed(t *testing.T) {
	j := &judge{t: t, reader: "ann", audiences: []string{"tandem"}, users: map[string]authenticationv1.UserInfo{
		"ann": {Username: "ann", UID: "7", Groups: []string{"a", "b"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}},
		"bob": {Username: "bob"},
	}}
	server := httptest.NewServer(j)
	defer server.Close()
	c := config.Default()
	c.NodeName, c.API.Server = thisNode, server.URL
	s, err := Open(&c, slog.New(slog.DiscardHandler), Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]struct {
		user    string
		allowed bool
	}{"ann": {"ann", true}, "bob": {"bob", false}, "eve": {"", false}} {
		if user, allowed, err := s.Review(t.Context(), token, "/status"); user != want.user || allowed != want.allowed || err != nil {
			t.Errorf("%s: %q, %t, %v", token, user, allowed, err)
		}
	}
	j.audiences = nil
	if user, allowed, err := s.Review(t.Context(), "ann", "/status"); user != "" || allowed || err != nil {
		t.Errorf("without audiences: %q, %t, %v", user, allowed, err)
	}
	j.refuse = http.StatusForbidden
	if _, allowed, err := s.Review(t.Context(), "ann", "/status"); allowed || err == nil || !strings.Contains(err.Error(), "needs create on tokenreviews") {
		t.Errorf("without the right to ask: %t, %v", allowed, err)
	}
}
