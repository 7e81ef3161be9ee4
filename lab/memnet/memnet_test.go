package memnet

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestBothEndsMayWriteFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe("a", "b")
		if _, err := a.Write([]byte("from a")); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Write([]byte("from b")); err != nil {
			t.Fatal(err)
		}
		a.Close()
		got, err := io.ReadAll(b)
		if string(got) != "from a" || err != nil {
			t.Fatalf("b read %q, %v", got, err)
		}
		if _, err := b.Write([]byte("x")); err == nil {
			t.Fatal("a write to a closed end must fail")
		}
	})
}

func TestFullBufferWaitsForTheReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe("a", "b")
		done := make(chan int, 1)
		go func() {
			n, _ := a.Write(make([]byte, bufferLimit+10))
			done <- n
		}()
		synctest.Wait()
		select {
		case <-done:
			t.Fatal("the write must wait for the reader")
		default:
		}
		if _, err := io.ReadFull(b, make([]byte, bufferLimit+10)); err != nil {
			t.Fatal(err)
		}
		if n := <-done; n != bufferLimit+10 {
			t.Fatalf("wrote %d", n)
		}
	})
}

func TestDeadlineAndSever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe("a", "b")
		start := time.Now()
		a.SetReadDeadline(start.Add(3 * time.Second))
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("want a deadline error, got %v", err)
		}
		if d := time.Since(start); d != 3*time.Second {
			t.Fatalf("waited %v", d)
		}
		b.Write([]byte("lost"))
		closed := false
		a.OnClose(func() { closed = true })
		a.Sever()
		a.SetReadDeadline(time.Time{})
		if _, err := a.Read(make([]byte, 9)); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("want a reset, got %v", err)
		}
		if _, err := b.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("the other end must see it too, got %v", err)
		}
		if !closed {
			t.Fatal("OnClose was not called")
		}
	})
}

func TestListenerServesHTTPInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Listen("host:1")
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hi") })}
		go srv.Serve(l)
		c, err := l.Dial(t.Context(), "me")
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
		b, _ := io.ReadAll(c)
		if len(b) < 2 || string(b[len(b)-2:]) != "hi" {
			t.Fatalf("got %q", b)
		}
		srv.Close()
		if _, err := l.Dial(context.Background(), "me"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("a closed listener must refuse, got %v", err)
		}
	})
}
