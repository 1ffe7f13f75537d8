// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// absent returns nil if the server's own list of what it serves (/apis) lacks the kind in
// every version. A request that is answered with 404 does not prove that: a proxy or a load
// balancer in front of the server answers so, too, and a server's own 404 for an unknown
// path is no Status by which to tell them apart.
func (f *follower) absent(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, min(f.limits.silence, historyTime))
	defer cancel()
	var groups metav1.APIGroupList
	if err := f.discover(ctx, "/apis", "APIGroupList", &groups); err != nil {
		return err
	}
	if len(groups.Groups) == 0 {
		return fmt.Errorf("no groups in /apis")
	}
	for _, g := range groups.Groups {
		if g.Name != f.version.Group {
			continue
		}
		for _, v := range g.Versions {
			var served metav1.APIResourceList
			if err := f.discover(ctx, "/apis/"+v.GroupVersion, "APIResourceList", &served); err != nil {
				return err
			}
			for _, r := range served.APIResources {
				if r.Name == f.resource {
					return fmt.Errorf("%s is in the API server's list of %s", f.resource, v.GroupVersion)
				}
			}
		}
	}
	return nil
}

// discover reads one of the server's lists of what it serves.
func (f *follower) discover(ctx context.Context, path, kind string, into any) error {
	ctx, _ = withByteCount(ctx) // bounded as an event is
	text, err := f.clients[0].Get().AbsPath(path).SetHeader("Accept", "application/json").MaxRetries(0).Do(ctx).Raw()
	if err != nil {
		return err
	}
	var is metav1.TypeMeta
	if err := json.Unmarshal(text, &is); err != nil {
		return err
	}
	if is.Kind != kind {
		return fmt.Errorf("%s is a %q, not a %s", path, cut(is.Kind, maxText), kind)
	}
	return json.Unmarshal(text, into)
}
