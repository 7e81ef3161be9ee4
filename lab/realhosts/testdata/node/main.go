// Node stands in for the lab's node in tests of package realhosts: it answers on the API port with its build id,
// and tells which peers it can reach.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "host" { // an agent: only there
		time.Sleep(time.Hour)
		return
	}
	if slices.Contains(os.Args, "--probe") {
		if _, err := http.Get("http://127.0.0.1:8001/healthz"); err != nil {
			os.Exit(1)
		}
		return
	}
	fmt.Println("[INFO][NODE] started", strings.Join(os.Args[1:], " "))
	starts, _ := os.ReadFile("/app/data/starts")
	if err := os.WriteFile("/app/data/starts", append(starts, '.'), 0o644); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	go serve(":9876", func(conn net.Conn) { fmt.Fprint(conn, "hello") })
	http.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "ok h=0 build=%s", os.Getenv("QNET_BUILD_ID"))
	})
	http.HandleFunc("/reach", reach)
	go http.ListenAndServe(":8001", nil)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
}

func serve(address string, answer func(net.Conn)) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		answer(conn)
		conn.Close()
	}
}

// reach lists the ids of the peers that answer.
func reach(w http.ResponseWriter, _ *http.Request) {
	for peer := range strings.SplitSeq(os.Getenv("QNETOPS_LAB_PEERS"), ",") {
		id, address, _ := strings.Cut(peer, "@")
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			continue
		}
		conn.SetReadDeadline(time.Now().Add(time.Second))
		if n, _ := conn.Read(make([]byte, 5)); n == 5 {
			fmt.Fprintln(w, id)
		}
		conn.Close()
	}
}
