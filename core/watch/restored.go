// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
)

// A server whose etcd was restored from a backup uses the numbers of lost versions again,
// for other changes. Once it has passed the version that is known here, it resumes a watch
// as if nothing had been lost; Kubernetes advises to start all of its components again. So
// when a watch ended before its time, the object that changed last is read as it was at
// that version, and one that was deleted still later: one or two objects, not a list.

// historyTime is for reading one object. Without an answer the server is asked again.
const historyTime = 5 * time.Second

// sameHistory returns errRestored if the server's versions are not those that led here,
// nil if they are or if this server cannot tell, and other errors if it is to be asked again.
func (f *follower) sameHistory(ctx context.Context) error {
	for _, last := range f.versions.latest() {
		found, err := f.foundAt(ctx, last.name)
		gone := last.deleted && found == 0
		switch {
		case tooLarge(err), err == nil && found != last.number && !gone:
			return errRestored
		case err != nil && !untold(err):
			return err
		}
	}
	return nil
}

// untold reports whether a server answers that it does not know.
func untold(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) || expired(err)
}

// foundAt returns which version of an object the server has at f.at; 0 is none.
func (f *follower) foundAt(ctx context.Context, n name) (found uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, min(f.limits.silence, historyTime))
	defer cancel()
	ctx, _ = withByteCount(ctx) // one object is bounded as an event is
	options := metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, n.name).String(),
		ResourceVersion: f.at, ResourceVersionMatch: metav1.ResourceVersionMatchExact,
	}
	_, err = f.eachItem(f.get(&options).Namespace(n.namespace).Do(ctx), func(_ runtime.Object, m metav1.Object) error {
		found = number(m.GetResourceVersion())
		return nil
	})
	return found, err
}

// last is the latest change of an object that is known.
type last struct {
	name
	number  uint64
	deleted bool
}

// latest returns the latest change of an object that is there, and the latest deletion if
// that is later. A restore that undoes changes undoes the latest.
func (h *versions) latest() (all []last) {
	var l last
	for n, v := range h.known {
		if v.number > l.number {
			l = last{name: n, number: v.number}
		}
	}
	if l.number > 0 {
		all = append(all, l)
	}
	if h.deleted.number > l.number {
		all = append(all, h.deleted)
	}
	return all
}

// distrust forgets which versions objects have: their numbers may be those of other changes.
func (h *versions) distrust() {
	h.deleted = last{}
	for n, v := range h.known {
		v.number = 0
		h.known[n] = v
	}
}
