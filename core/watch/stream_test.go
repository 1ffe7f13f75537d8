// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/tandem-proxy/tandem/core/test/growth"
)

// sent is what a server sends of events, in protobuf.
func sent(t testing.TB, version schema.GroupVersion, events ...apiwatch.Event) []byte {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	codecs := serializer.NewCodecFactory(scheme)
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	var all []byte
	for _, e := range events {
		var object, event bytes.Buffer
		if err := codecs.EncoderForVersion(info.Serializer, version).Encode(e.Object, &object); err != nil {
			t.Fatal(err)
		}
		whole := &metav1.WatchEvent{Type: string(e.Type), Object: runtime.RawExtension{Raw: object.Bytes()}}
		if err := codecs.EncoderForVersion(info.StreamSerializer.Serializer, version).Encode(whole, &event); err != nil {
			t.Fatal(err)
		}
		all = append(binary.BigEndian.AppendUint32(all, uint32(event.Len())), event.Bytes()...)
	}
	return all
}

// reading is a follower's decoder of what a server sends.
func reading(t testing.TB, k kind, text []byte) eventDecoder {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	client := &Client{codecs: serializer.NewCodecFactory(scheme)}
	f := &follower{kind: k, decoders: client.decoders()}
	from, err := f.decoder(io.NopCloser(bytes.NewReader(text)), "application/vnd.kubernetes.protobuf;stream=watch")
	if err != nil {
		t.Fatal(err)
	}
	return from
}

// Each event has the object that was sent, without what nobody reads and without anything of the one
// before, whose maps it may have, and of one that is gone the metadata alone; one of another kind, such as why the server ends the watch, is
// decoded as what it is.
func TestEventsHaveTheirOwnObject(t *testing.T) {
	large, small, empty := typicalSlice(1, 7), typicalSlice(2, 2), &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "empty"}}
	bare := typicalSlice(3, 3)
	for i := range bare.Endpoints {
		bare.Endpoints[i] = discoveryv1.Endpoint{Addresses: bare.Endpoints[i].Addresses}
	}
	large.GenerateName, large.OwnerReferences = "service-1-", []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "service-1", UID: "u"}}
	plain := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "plain"}}
	gone := &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: 410}
	events := []apiwatch.Event{
		{Type: apiwatch.Added, Object: large},
		{Type: apiwatch.Modified, Object: small},
		{Type: apiwatch.Modified, Object: bare},
		{Type: apiwatch.Deleted, Object: large},
		{Type: apiwatch.Bookmark, Object: empty},
		{Type: apiwatch.Added, Object: typicalService(1)},
		{Type: apiwatch.Error, Object: gone},
	}
	expectEvents(t, reading(t, endpointSlices(), append(sent(t, discoveryv1.SchemeGroupVersion, events[:5]...), sent(t, corev1.SchemeGroupVersion, events[5:]...)...)), events)
	events = []apiwatch.Event{
		{Type: apiwatch.Added, Object: typicalService(2)},
		{Type: apiwatch.Added, Object: plain},
		{Type: apiwatch.Modified, Object: typicalService(3)},
	}
	expectEvents(t, reading(t, services(), sent(t, corev1.SchemeGroupVersion, events...)), events)
}

// expectEvents reads events of the first one's kind, some others, and then the end.
func expectEvents(t *testing.T, from eventDecoder, events []apiwatch.Event) {
	t.Helper()
	for i, want := range events {
		got, err := nextEvent(from)
		if err != nil {
			t.Fatalf("event %d: %v", i, err)
		}
		expected, object := want.Object.DeepCopyObject(), got.Object
		expected.GetObjectKind().SetGroupVersionKind(object.GetObjectKind().GroupVersionKind()) // which decoders clear, or not
		if m, is := expected.(metav1.Object); is && reflect.TypeOf(expected) == reflect.TypeOf(events[0].Object) {
			m.SetManagedFields(nil)
			m.SetOwnerReferences(nil)
			m.SetGenerateName("")
		}
		if slice, is := expected.(*discoveryv1.EndpointSlice); is && want.Type == apiwatch.Deleted {
			slice.AddressType, slice.Endpoints, slice.Ports = "", nil, nil
		}
		if got.Type != want.Type || !equality.Semantic.DeepEqual(object, expected) {
			t.Errorf("event %d:\n got %s %+v\nwant %s %+v", i, got.Type, object, want.Type, expected)
		}
	}
	if _, err := nextEvent(from); !errors.Is(err, io.EOF) {
		t.Errorf("after the last event: %v", err)
	}
}

// What is no event is an error, and one that is cut short the end.
func TestEventsThatCannotBeRead(t *testing.T) {
	whole := sent(t, corev1.SchemeGroupVersion, apiwatch.Event{Type: apiwatch.Added, Object: typicalService(1)})
	for name, c := range map[string]struct {
		text []byte
		want error
	}{
		"cut short":       {whole[:len(whole)/2], io.EOF},
		"only its length": {whole[:4], io.EOF},
		"too large":       {[]byte("\x7f\xff\xff\xff and more"), errTooMuch},
		"unknown type":    {bytes.Replace(whole, []byte("ADDED"), []byte("OTHER"), 1), errUnread},
		"no protobuf":     {append([]byte{0, 0, 0, 9}, "\x0a\x05ADDED\x12\x00"...), errUnread},
		"not a message":   {append([]byte{0, 0, 0, 2}, 0xff, 0xff), errUnread},
		"another object":  {sent(t, corev1.SchemeGroupVersion, apiwatch.Event{Type: apiwatch.Added, Object: &corev1.Node{}}), nil},
		"object cut":      {bytes.Replace(whole, []byte("\x1a\x06team-1"), []byte("\x1a\x7fteam-1"), 1), errUnread},
	} {
		e, err := nextEvent(reading(t, services(), c.text))
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %+v, %v, want %v", name, e.Object, err, c.want)
		}
	}
}

// A start reads every object as an event: what decoding takes besides the object's own strings is
// garbage. Client-go's decoder makes 8,079 bytes of a typical slice.
func TestAnEventMakesLittleGarbage(t *testing.T) {
	if growth.Raced() {
		t.Skip("the race detector allocates for itself")
	}
	const events = 200
	all := make([]apiwatch.Event, events)
	for i := range all {
		all[i] = apiwatch.Event{Type: apiwatch.Added, Object: typicalSlice(i, 5)}
	}
	text := sent(t, discoveryv1.SchemeGroupVersion, all...)
	result := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			from := reading(b, endpointSlices(), text)
			for range events {
				if _, err := nextEvent(from); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	each := result.AllocedBytesPerOp() / events
	t.Logf("%d bytes in %d objects, %s", each, result.AllocsPerOp()/events, result.String())
	if each > 2400 {
		t.Errorf("%d bytes of an event", each)
	}
}
