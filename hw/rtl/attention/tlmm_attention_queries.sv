// Takes the queries of a command: headers, and elements into a memory that keys are multiplied
// from. Elements of the first head are needed while those of the others still come.
module tlmm_attention_queries #(
    parameter int QUERIES = 2
) (
    input  logic                          clk,
    input  logic                          rst,
    input  logic                          start,
    input  logic [5:0]                    heads,
    input  logic [4:0]                    units,
    input  logic [3:0]                    queries,
    input  logic                          x_valid,
    output logic                          x_ready,
    input  logic [127:0]                  x_data,
    output logic [5:0]                    loaded,       // heads
    // elements, two cycles after their index: of all heads, one after another
    input  logic [10:0]                   index,
    output logic [QUERIES-1:0][15:0]      element,
    // headers
    input  logic [4:0]                    score_head,
    output logic [QUERIES-1:0][6:0]       shift,
    output logic [QUERIES-1:0][16:0]      first,
    output logic [QUERIES-1:0][16:0]      limit,
    input  logic [4:0]                    weight_head,
    output logic [QUERIES-1:0][4:0]       weight_top,
    input  logic [4:0]                    finish_head,
    output logic [QUERIES-1:0][4:0]       finish_top
);
  logic active, is_header, take, last_beat, last_query, last_head;
  logic [5:0] beats, beat;
  logic [3:0] query;
  logic [4:0] head;
  logic [7:0] word, base;  // of the elements: where the beat goes, and where this head begins

  assign x_ready = active;
  assign take = x_valid && x_ready;
  assign last_beat = beat == beats;
  assign last_head = loaded == heads - 1'b1;
  assign head = loaded[4:0];

  always_ff @(posedge clk) begin
    if (rst) active <= 1'b0;
    else if (start) active <= 1'b1;
    else if (take && last_beat && last_query && last_head) active <= 1'b0;

    if (start) begin
      beats <= {units, 1'b0};
      beat <= '0;
      is_header <= 1'b1;
      query <= '0;
      last_query <= queries == 4'd1;
      loaded <= '0;
      word <= '0;
      base <= '0;
    end else if (take) begin
      is_header <= last_beat;
      beat <= last_beat ? '0 : beat + 1'b1;
      if (!is_header) word <= last_beat && !last_query ? base : word + 1'b1;
      if (last_beat) begin
        query <= last_query ? '0 : query + 1'b1;
        last_query <= queries == 4'd1 || (!last_query && query + 4'd2 == queries);
        if (last_query) begin
          loaded <= loaded + 1'b1;
          base <= word + 1'b1;
        end
      end
    end
  end

  logic [2:0] part;
  tlmm_delay #(
      .WIDTH (3),
      .CYCLES(2)
  ) delay_part (
      .clk,
      .in (index[2:0]),
      .out(part)
  );

  for (genvar q = 0; q < QUERIES; q++) begin : g_query
    logic mine;
    logic [127:0] elements;
    (* ram_style = "distributed" *) logic [40:0] ranges[32];
    (* ram_style = "distributed" *) logic [4:0] tops[32];

    assign mine = take && query == 4'(q);

    tlmm_ram #(
        .WIDTH(128),
        .DEPTH(256)
    ) codes (
        .clk,
        .write(mine && !is_header),
        .write_address(word),
        .write_data(x_data),
        .read_address(index[10:3]),
        .read_data(elements)
    );
    always_ff @(posedge clk) begin
      if (mine && is_header) begin
        ranges[head] <= {x_data[6:0], x_data[48:32], x_data[80:64]};
        tops[head] <= x_data[12:8];
      end
    end
    assign element[q] = elements[16*part+:16];
    assign {shift[q], first[q], limit[q]} = ranges[score_head];
    assign weight_top[q] = tops[weight_head];
    assign finish_top[q] = tops[finish_head];
  end

  logic unused;
  assign unused = &{1'b0, x_data};
endmodule
