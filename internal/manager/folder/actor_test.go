package folder_test

import (
	"context"
	"reflect"
	"testing"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/folder"
)

// Every use case takes its actor after the context and refuses nobody-in-particular before it looks at anything.
func TestEveryUseCaseDecidesAboutItsActor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	others := map[string]bool{ // not called on behalf of anybody
		"NewLoop": true, "Loops": true, "Hold": true, "Discard": true,
		"ResolveMounts": true, // the owner comes after the queries; see TestResolveMounts
	}
	ctx, actor := reflect.TypeFor[context.Context](), reflect.TypeFor[authz.Actor]()
	service := reflect.ValueOf(r.Service)
	for i := range service.NumMethod() {
		m := service.Type().Method(i)
		if others[m.Name] {
			continue
		}
		if m.Type.NumIn() < 3 || m.Type.In(1) != ctx || m.Type.In(2) != actor {
			t.Errorf("%s does not take a context and its actor first", m.Name)
			continue
		}
		in := []reflect.Value{reflect.ValueOf(t.Context())}
		for n := 2; n < m.Type.NumIn(); n++ {
			in = append(in, reflect.Zero(m.Type.In(n)))
		}
		out := service.Method(i).Call(in)
		err, _ := out[len(out)-1].Interface().(error)
		wantKind(t, err, fault.Denied, m.Name+" by nobody")
	}
	_, err := r.ResolveMounts(t.Context(), r.store.Queries, authz.Actor{}, folder.MountRequest{})
	wantKind(t, err, fault.Denied, "ResolveMounts of nobody")
}
