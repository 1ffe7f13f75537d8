package watch

import (
	"errors"
	"fmt"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// maxText bounds what is kept and logged of one failure, in bytes.
const maxText = 2 << 10

// explain says why a request failed: what, where, and what to do about it.
func explain(k *kind, err error, server string) string {
	return cut(reason(k, err, server), maxText)
}

func reason(k *kind, err error, server string) string {
	status := err.Error()
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("%s; bind the user to the ClusterRole system:node-proxier, or add to its role: "+
			`{apiGroups: [%q], resources: [%q], verbs: ["list", "watch"]}`, status, k.version.Group, k.resource)
	case apierrors.IsUnauthorized(err):
		return "the API server refuses our credentials: " + status + "; is the token or client certificate expired, or of another cluster?"
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("the API server does not have %s of %s: %s; is it older than that?", k.resource, k.version, status)
	case errors.As(err, new(apierrors.APIStatus)):
		return fmt.Sprintf("the API server cannot answer for %s: %s", k.groupResource(), status)
	}
	var at *url.Error // its text holds the whole URL
	if errors.As(err, &at) {
		err = at.Err
	}
	return fmt.Sprintf("the API server %s: %v", server, err)
}
