// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/rest"
)

// A list is decoded one item at a time, each dropped before the next: an item may take three
// bytes of an answer, and a thousand of memory. An item without a name ends the list: objects
// have one, and of those that a few bytes make none does.

// maxItem bounds an item, as maxEvent an event. etcd stores 1.5 MB of an object.
const maxItem = maxEvent

// eachItem passes the items of a list on, and returns the list's own metadata. All of the items
// that were passed on are objects of the server, also where an error follows.
func (k *kind) eachItem(result rest.Result, each func(runtime.Object, metav1.Object) error) (list metav1.ListMeta, err error) {
	body, err := result.Raw()
	if err != nil {
		return list, err
	}
	one := func(decode func(runtime.Object) error) error {
		o := k.item()
		if err := decode(o); err != nil {
			return err
		}
		m, ok := o.(metav1.Object)
		if !ok || m.GetName() == "" {
			return errors.New("an item has no name")
		}
		return each(o, m)
	}
	want := reflect.TypeOf(k.item()).Elem().Name() + "List"
	if payload, ok := bytes.CutPrefix(body, []byte("k8s\x00")); ok {
		list, err = protobufItems(payload, want, one)
	} else {
		list, err = jsonItems(body, want, one)
	}
	if err != nil {
		err = fmt.Errorf("list of %s: %w", k.resource, err)
	}
	return list, err
}

// The numbers of fields: of runtime.Unknown, which holds a list, of the TypeMeta in it, and of
// every list.
const (
	unknownType  = 1
	unknownRaw   = 2
	typeMetaKind = 2
	listMeta     = 1
	listItem     = 2
)

// protobufItems decodes a list in protobuf.
func protobufItems(payload []byte, want string, one func(func(runtime.Object) error) error) (list metav1.ListMeta, err error) {
	var raw []byte
	kind := ""
	err = eachField(payload, func(number protowire.Number, value []byte) error {
		switch number {
		case unknownType:
			return eachField(value, func(number protowire.Number, value []byte) error {
				if number == typeMetaKind {
					kind = string(value[:min(len(value), maxText)])
				}
				return nil
			})
		case unknownRaw:
			raw = value
		}
		return nil
	})
	if err == nil && kind != want {
		err = notThe(kind, want)
	}
	if err != nil {
		return list, err
	}
	err = eachField(raw, func(number protowire.Number, value []byte) error {
		switch number {
		case listMeta:
			return list.Unmarshal(value)
		case listItem:
			if len(value) > maxItem {
				return fmt.Errorf("an item is larger than %d MiB", maxItem>>20)
			}
			return one(func(o runtime.Object) error {
				m, ok := o.(interface{ Unmarshal([]byte) error })
				if !ok {
					return fmt.Errorf("%T has no form in protobuf", o)
				}
				return m.Unmarshal(value)
			})
		}
		return nil
	})
	return list, err
}

// eachField calls each for the fields of a message that have a length.
func eachField(message []byte, each func(protowire.Number, []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
				return protowire.ParseError(n)
			}
			message = message[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if err := each(number, value); err != nil {
			return err
		}
		message = message[n:]
	}
	return nil
}

// jsonItems decodes a list in JSON.
func jsonItems(body []byte, want string, one func(func(runtime.Object) error) error) (list metav1.ListMeta, err error) {
	in := json.NewDecoder(bytes.NewReader(body))
	if t, err := in.Token(); err != nil || t != json.Delim('{') {
		return list, notThe("", want)
	}
	var value json.RawMessage // used again
	for in.More() {
		key, err := in.Token()
		if err != nil {
			return list, err
		}
		if key == "items" {
			err = jsonArray(in, func() error {
				if err := in.Decode(&value); err != nil {
					return err
				}
				if len(value) > maxItem {
					return fmt.Errorf("an item is larger than %d MiB", maxItem>>20)
				}
				return one(func(o runtime.Object) error { return utiljson.Unmarshal(value, o) })
			})
			if err != nil {
				return list, err
			}
			continue
		}
		if err := in.Decode(&value); err != nil {
			return list, err
		}
		switch key {
		case "kind":
			var kind string
			if err := utiljson.Unmarshal(value, &kind); err != nil || kind != want {
				return list, notThe(cut(kind, maxText), want)
			}
		case "metadata":
			if err := utiljson.Unmarshal(value, &list); err != nil {
				return list, err
			}
		}
	}
	_, err = in.Token()
	return list, err
}

// jsonArray calls each where a value of an array begins; null is an empty one.
func jsonArray(in *json.Decoder, each func() error) error {
	t, err := in.Token()
	if err != nil || t == nil {
		return err
	}
	if t != json.Delim('[') {
		return fmt.Errorf("items begin with %v", t)
	}
	for in.More() {
		if err := each(); err != nil {
			return err
		}
	}
	_, err = in.Token()
	return err
}

func notThe(kind, want string) error { return fmt.Errorf("the answer is a %q, not a %s", kind, want) }
