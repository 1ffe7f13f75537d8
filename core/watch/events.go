// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/tandem-proxy/tandem/core/events"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
)

// EventWriter writes Events to an API server, as events.k8s.io/v1, with the
// verbs create and patch. It is safe for concurrent use.
type EventWriter struct {
	// Client is for the group and version events.k8s.io/v1.
	Client rest.Interface
	Node   string // the Node that this machine is
	// Objects are clients for the kinds that Events are about, whose UIDs are asked for with the
	// verb list. Without one, Events have no UID.
	Objects map[string]rest.Interface

	uids *uids // of those that a Source follows; nil where none does
}

// reporter is the reporting controller, the same as kube-proxy's, so that existing
// filters work. The instance distinguishes them.
const reporter = "kube-proxy"

// maxNote is how many bytes the note of an Event may have, by the API.
const maxNote = 1024

// Events returns a writer of this node's Events, on the connection that all
// share.
func (c *Client) Events(node string) (*EventWriter, error) {
	client, err := c.REST(eventsv1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	w := &EventWriter{Client: client, Node: node, Objects: map[string]rest.Interface{}}
	for kind, version := range map[string]schema.GroupVersion{"Service": corev1.SchemeGroupVersion, "EndpointSlice": discoveryv1.SchemeGroupVersion} {
		if w.Objects[kind], err = c.REST(version); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// Write is an events.Sink. Several nodes may write one Event under one name: the
// first one creates it, and "already exists" counts as success.
func (w *EventWriter) Write(ctx context.Context, r events.Record) error {
	e := w.object(r, w.uid(ctx, r.About))
	if r.Written {
		err := w.patch(ctx, r, e)
		if !apierrors.IsNotFound(err) {
			return asRejected(r, err)
		}
	}
	err := w.Client.Post().Namespace(e.Namespace).Resource("events").Body(e).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) {
		if r.Everywhere {
			return nil
		}
		err = w.patch(ctx, r, e) // of an earlier run
	}
	return asRejected(r, err)
}

// asRejected marks errors that will be the same next time.
func asRejected(r events.Record, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), noNamespace(err):
		return fmt.Errorf("event for %s: %w: %w", r.About, events.ErrNamespaceGone, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("event for %s: %w: %w; the role needs the verbs create and patch on events of events.k8s.io", r.About, events.ErrRejected, err)
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
		return fmt.Errorf("event for %s: %w: %w", r.About, events.ErrRejected, err)
	}
	return fmt.Errorf("event for %s: %w", r.About, err)
}

// noNamespace reports whether an API server answered that a namespace does not exist.
func noNamespace(err error) bool {
	status := apierrors.APIStatus(nil)
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	d := status.Status().Details
	return d != nil && d.Kind == "namespaces"
}

// uid returns the UID of an object: kubectl describe shows no Event without it. kubectl describe finds a
// Node's Events by its name in place of its UID, as the kubelet writes them.
func (w *EventWriter) uid(ctx context.Context, o model.Key) types.UID {
	if o.Kind == "Node" {
		return types.UID(o.Name)
	}
	ask := func() types.UID { return w.askUID(ctx, o) }
	if w.uids == nil {
		return ask()
	}
	return w.uids.get(o, ask)
}

func resourceOf(o model.Key) string { return strings.ToLower(o.Kind) + "s" }

// onlyMetadata asks for a list without what objects are made of; a server that has no such
// form sends all of them.
const onlyMetadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"

// askUID asks the server. The UID is empty where it does not tell, since an Event that only kubectl
// events shows is better than none. It is kept, so that the answer must not come from a cache that is behind.
func (w *EventWriter) askUID(ctx context.Context, o model.Key) types.UID {
	client := w.Objects[o.Kind]
	if client == nil {
		return ""
	}
	text, err := client.Get().Namespace(o.Namespace).Resource(resourceOf(o)).
		Param("fieldSelector", fields.OneTermEqualSelector(metav1.ObjectNameField, o.Name).String()).
		SetHeader("Accept", onlyMetadata).Do(ctx).Raw()
	var list metav1.PartialObjectMetadataList
	if err != nil || json.Unmarshal(text, &list) != nil {
		return ""
	}
	for _, item := range list.Items {
		if item.Name == o.Name && item.Namespace == o.Namespace {
			return item.UID
		}
	}
	return ""
}

// maxUIDs bounds the UIDs that are known: of more objects than have Events at a time.
const maxUIDs = 1024

// uids are those of the objects that have Events: hardly any has, so that a UID with each object would cost
// more than one request for each of these. From then on the UID is that of the object that is followed: one that is
// made again is asked for no more. It is safe for concurrent use.
type uids struct {
	mu sync.Mutex
	of map[model.Key]types.UID // empty while the server is asked
}

// get returns the UID of an object, which it asks for unless it is known.
func (u *uids) get(k model.Key, ask func() types.UID) types.UID {
	u.mu.Lock()
	known := u.of[k]
	if known == "" {
		for other := range u.of {
			if len(u.of) < maxUIDs {
				break
			}
			delete(u.of, other)
		}
		u.of[k] = ""
	}
	u.mu.Unlock()
	if known != "" {
		return known
	}
	answer := ask()
	u.mu.Lock()
	defer u.mu.Unlock()
	switch seen, followed := u.of[k]; {
	case !followed: // it was deleted meanwhile
	case seen != "":
		return seen
	case answer == "":
		delete(u.of, k)
	default:
		u.of[k] = answer
	}
	return answer
}

// seen notes the UID that an object has.
func (u *uids) seen(k model.Key, uid types.UID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, wanted := u.of[k]; wanted {
		u.of[k] = uid
	}
}

// gone notes that there is no such object any more.
func (u *uids) gone(k model.Key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.of, k)
}

// patch updates the count of an Event. Other fields stay.
func (w *EventWriter) patch(ctx context.Context, r events.Record, e *eventsv1.Event) error {
	b, err := json.Marshal(map[string]any{"series": seriesOf(r, 2)})
	if err != nil {
		return err
	}
	return w.Client.Patch(types.MergePatchType).Namespace(e.Namespace).Resource("events").Name(e.Name).Body(b).Do(ctx).Error()
}

func (w *EventWriter) object(r events.Record, uid types.UID) *eventsv1.Event {
	e := &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Name: r.Name(w.Node, string(uid)), Namespace: namespaceOf(r)},
		EventTime:           metav1.MicroTime{Time: r.First},
		ReportingController: reporter,
		ReportingInstance:   "tandem-" + w.Node,
		Action:              r.Action,
		Reason:              r.Reason,
		Regarding:           regarding(r.About, uid),
		Note:                printable.CutBytes(r.Note, maxNote),
		Type:                string(r.Type),
	}
	if r.Count > 1 {
		e.Series = seriesOf(r, r.Count)
	}
	const most = 128 // by the API
	e.ReportingInstance = printable.CutBytes(e.ReportingInstance, most)
	return e
}

// seriesOf returns a series with a count of at least two, as the API demands.
func seriesOf(r events.Record, least int) *eventsv1.EventSeries {
	return &eventsv1.EventSeries{Count: int32(min(max(r.Count, least), 1<<30)), LastObservedTime: metav1.MicroTime{Time: r.Last}}
}

// regarding refers to an object.
func regarding(o model.Key, uid types.UID) corev1.ObjectReference {
	ref := corev1.ObjectReference{APIVersion: "v1", Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, UID: uid}
	if o.Kind == "EndpointSlice" {
		ref.APIVersion = "discovery.k8s.io/v1"
	}
	return ref
}

// namespaceOf is the namespace of an Event: its object's, or default.
func namespaceOf(r events.Record) string {
	if r.About.Namespace == "" {
		return metav1.NamespaceDefault
	}
	return r.About.Namespace
}
