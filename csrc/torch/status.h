/* status.h - what each file of csrc/torch found, for ta_torch_status. Private to it. */
#ifndef TA_STATUS_H
#define TA_STATUS_H

const char *ta_throw_status(void);
const char *ta_streams_status(void);
/* item: of ta_torch_item, those about virtual functions. */
const char *ta_vtable_status(int item);

#endif
