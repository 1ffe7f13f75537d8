// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
)

// Audience is what a token must have been made for, to be shown to Tandem. The pages are served
// without TLS: a token that the API server itself accepts must not be sent there.
const Audience = "tandem"

// The rate of reviews, of which each is two requests. It is apart from that of Events: strangers
// cause them.
const (
	reviewRate  = 5 // requests a second
	reviewBurst = 10
)

// tokenReview is what is used of a TokenReview of authentication.k8s.io/v1.
type tokenReview struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Spec       tokenReviewSpec   `json:"spec"`
	Status     tokenReviewStatus `json:"status,omitzero"`
}

type tokenReviewSpec struct {
	Token     string   `json:"token"`
	Audiences []string `json:"audiences"`
}

type tokenReviewStatus struct {
	Authenticated bool     `json:"authenticated"`
	Audiences     []string `json:"audiences"`
	User          struct {
		Username string              `json:"username"`
		UID      string              `json:"uid"`
		Groups   []string            `json:"groups"`
		Extra    map[string][]string `json:"extra"`
	} `json:"user"`
}

// accessReview is what is used of a SubjectAccessReview of authorization.k8s.io/v1.
type accessReview struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Spec       accessReviewSpec `json:"spec"`
	Status     struct {
		Allowed bool `json:"allowed"`
	} `json:"status,omitzero"`
}

type accessReviewSpec struct {
	NonResource struct {
		Path string `json:"path"`
		Verb string `json:"verb"`
	} `json:"nonResourceAttributes"`
	User   string              `json:"user"`
	UID    string              `json:"uid,omitempty"`
	Groups []string            `json:"groups,omitempty"`
	Extra  map[string][]string `json:"extra,omitempty"`
}

// Review has the API server say whose a token for Audience is, and whether that user may get a
// path that is no resource. The user is empty if it is nobody's.
func (s *Source) Review(ctx context.Context, token, path string) (user string, allowed bool, err error) {
	who := tokenReview{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview", Spec: tokenReviewSpec{token, []string{Audience}}}
	if err := s.review(ctx, "/apis/authentication.k8s.io/v1/tokenreviews", &who); err != nil {
		return "", false, err
	}
	// A server that knows no audiences leaves them out: then the token is one of its own.
	if !who.Status.Authenticated || !slices.Contains(who.Status.Audiences, Audience) || who.Status.User.Username == "" {
		return "", false, nil
	}
	of := who.Status.User
	may := accessReview{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview", Spec: accessReviewSpec{User: of.Username, UID: of.UID, Groups: of.Groups, Extra: of.Extra}}
	may.Spec.NonResource.Path, may.Spec.NonResource.Verb = path, "get"
	err = s.review(ctx, "/apis/authorization.k8s.io/v1/subjectaccessreviews", &may)
	return of.Username, may.Status.Allowed, err
}

// review has the server complete a document.
func (s *Source) review(ctx context.Context, path string, doc any) error {
	text, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	answer, err := s.reviews.Post().AbsPath(path).MaxRetries(0).
		SetHeader("Content-Type", runtime.ContentTypeJSON).SetHeader("Accept", runtime.ContentTypeJSON).
		Body(text).Do(ctx).Raw()
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w; Tandem's role needs create on tokenreviews of authentication.k8s.io and subjectaccessreviews of authorization.k8s.io, as value kubectl.enabled of the chart grants", err)
	case err != nil:
		return fmt.Errorf("checking a token: %w", err)
	}
	return json.Unmarshal(answer, doc)
}
